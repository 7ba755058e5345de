"""Which suite does each test belong to?

`quick` is for every change, `full` for a change that is ready, `long` for CI. A suite has the tests of the suites before it.
A test that no row names belongs to `full`.
"""

import pathlib

import pytest

SUITES = ("quick", "full", "long")

# Some of each area; about two minutes.
QUICK = (
    "conformance/test_admission.py",
    "conformance/test_classification.py",
    "conformance/test_clients.py",
    "conformance/test_datatypes.py",
    "conformance/test_generate.py",
    "conformance/test_health.py",
    "conformance/test_infer_grpc.py",
    "conformance/test_infer_http.py",
    "conformance/test_json.py",
    "conformance/test_limits.py",
    "conformance/test_metadata.py",
    "conformance/test_python_answers.py",
    "conformance/test_python_models.py",
    "conformance/test_repository.py",
    "conformance/test_settings.py",
    "conformance/test_shm.py",
    "conformance/test_shm_faults.py",
    "conformance/test_sockets.py",
    "conformance/test_statistics.py",
    "conformance/test_stream.py",
    "faults/test_faulty_connections.py",
    "faults/test_faulty_messages.py",
    "faults/test_faulty_regions.py",
    "gpu/test_cuda.py",
    "hostile/test_copies.py",
    "hostile/test_log_settings.py",
    "hostile/test_python_copies.py",
    "hostile/test_sessions.py",
    "hostile/test_strangers.py",
    "hostile/test_threads.py",
    "onnx_models/test_onnx_models.py",
    "page/test_page.py::test_a_digit_drawn_by_mouse_is_read[three]",
    "perf_analyzer/test_perf_analyzer.py::test_the_classic_example",
)

# Those that take long, fill the memory or the processors, or kill processes by the hundred. `test_compiled_python_*`
# runs the tests of Python models again, in NVIDIA's backend.
LONG = (
    "conformance/test_compiled_python_answers.py",
    "conformance/test_compiled_python_calls.py",
    "conformance/test_compiled_python_models.py",
    "conformance/test_large_tensors.py",
    "conformance/test_reloads.py::test_a_thousand_loads_and_unloads_leave_nothing_behind",
    "conformance/test_reloads.py::test_loads_and_unloads_leave_nothing_behind",
    "conformance/test_reloads.py::test_no_request_fails_while_a_model_is_reloaded_for_long",
    "conformance/test_shared_weights.py",
    "hostile/test_attacks.py",
    "hostile/test_breaking_backends.py",
    "hostile/test_budgets.py",
    "hostile/test_collectors.py",
    "hostile/test_connections.py",
    "hostile/test_inflation.py",
    "hostile/test_isolated.py",
    "hostile/test_isolated_backends.py",
    "hostile/test_kills.py",
    "hostile/test_memory.py",
    "hostile/test_operands.py",
    "hostile/test_parallel_allocations.py",
    "hostile/test_python_endurance.py",
    "hostile/test_python_greed.py",
    "hostile/test_python_kills.py",
    "hostile/test_python_large.py",
    "hostile/test_python_regions.py",
    "hostile/test_region_owners.py",
    "hostile/test_regions.py::test_as_many_regions_as_there_may_be",
    "hostile/test_sanitized_backends.py",
    "hostile/test_session_socket.py",
    "hostile/test_waiting_backends.py",
    "packaging/test_demo.py",
    "packaging/test_documents.py::test_each_command_of_a_page_runs[docs/quickstart.md]",
    "packaging/test_documents.py::test_each_command_of_a_page_runs[docs/shared-memory.md]",
    "packaging/test_release.py",
    "packaging/test_wheel.py",
    "real/test_real_libraries.py",
)


def suite_of(node: str) -> str:
    """The suite of the test with this id, which is relative to this folder."""
    def is_named(rows: tuple[str, ...]) -> bool:
        return any(node == row or node.startswith((f"{row}::", f"{row}[")) for row in rows)

    if is_named(QUICK):
        return "quick"
    return "long" if is_named(LONG) else "full"


def check_rows(folder: pathlib.Path) -> None:
    """Fails if a row names a file that is not there."""
    missing = [row for row in (*QUICK, *LONG) if not (folder / row.partition("::")[0]).exists()]
    if missing:
        raise pytest.UsageError(f"tests/suites.py names files that are not there: {', '.join(missing)}")


def mark(items: list[pytest.Item]) -> None:
    """Gives each test the mark of its suite."""
    for item in items:
        item.add_marker(getattr(pytest.mark, suite_of(item.nodeid)))


def select(items: list[pytest.Item], suite: str) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests of this suite and of those before it, and the others."""
    wanted = SUITES[: SUITES.index(suite) + 1]
    chosen = [item for item in items if any(item.get_closest_marker(name) for name in wanted)]
    return chosen, [item for item in items if not any(item.get_closest_marker(name) for name in wanted)]
