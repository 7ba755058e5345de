"""Which suite does each test belong to?

| suite | holds |
|---|---|
| gate | what no row below names; `cargo xtask test` runs it |
| alone | what measures, or fills the machine: nothing may run beside it |
| long | what takes long, or needs more than crates and wheels |
| oracle | what needs NVIDIA's or PyTorch's wheels (`cargo xtask oracle`) |
| quick | some of each area, whatever suite they belong to |

Rows are files and tests below `tests/`. Those of the Python package begin with `python/tests/`.
"""

import contextlib
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUITES = ("quick", "gate", "alone", "long", "oracle")

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

# Each row has its reason.
ALONE = {
    "conformance/test_batching.py::test_a_delay_ends_when_a_preferred_size_is_there": "asserts an end in less than 15 s",
    "conformance/test_batching.py::test_ten_times_too_much_is_refused_quickly_and_costs_no_memory": "reads resident memory and processor time",
    "conformance/test_demand.py::test_what_models_were_measured_to_need_counts": "verdict follows from measured resident memory of processes",
    "conformance/test_ensembles.py::test_steps_that_do_not_depend_on_each_other_run_side_by_side": "asserts less than 1.8 s for steps of 1 s",
    "conformance/test_in_process.py::test_servers_one_after_the_other_leave_nothing_behind": "counts threads and descriptors, reads resident memory",
    "conformance/test_large_tensors.py": "tensors of 2 GiB; reads resident memory",
    "conformance/test_log_lines.py::test_a_line_that_repeats_is_written_a_few_times_and_then_once_with_its_count": "asserts that 25 loads take less than 5 s",
    "conformance/test_memory_usage.py::test_each_process_of_a_python_model_has_what_it_filled": "compares resident memory of processes",
    "conformance/test_memory_usage.py::test_each_process_of_an_isolated_model_has_the_constants_for_itself": "compares resident memory of processes",
    "conformance/test_python_again.py::test_a_client_that_does_not_read_holds_only_its_own_sequence_back": "asserts an answer in less than 20 s",
    "conformance/test_python_readiness.py::test_a_model_with_a_late_readiness_answer_is_not_ready_and_still_serves": "asserts less than 8 s and less than 1 s",
    "conformance/test_python_readiness.py::test_concurrent_readiness_checks_share_one_question_and_block_no_request": "asserts requests in less than 1 s",
    "conformance/test_rate_limits.py::test_who_need_not_wait_does_not": "asserts less than 0.8 s",
    "conformance/test_rate_limits.py::test_without_a_limiter_nobody_waits": "asserts less than 0.8 s",
    "conformance/test_reloads.py::test_loads_and_unloads_leave_nothing_behind": "reads resident memory, counts threads and descriptors",
    "conformance/test_run_deadlines.py::test_a_long_run_of_a_graph_without_loops_ends_too": "saturates both processors; asserts a stage below 5 s",
    "conformance/test_run_deadlines.py::test_a_request_behind_a_run_is_refused_at_its_time": "asserts an answer in less than 3 s",
    "conformance/test_sequence_runs.py::test_ensembles_around_ensembles_do_not_lengthen_a_run_without_its_client": "asserts an end in less than 3 s",
    "conformance/test_shared_weights.py": "reads resident memory (RssAnon) of processes",
    "conformance/test_system_calls.py": "counts system calls with strace",
    "conformance/test_tuned_delay.py::test_one_client_is_not_kept_waiting": "asserts that requests take less than 4 s",
    "conformance/test_unread_bodies.py::test_who_is_slow_to_send_is_answered_and_the_connection_ends": "asserts an end in less than 15 s",
    "conformance/test_updates.py::test_instances_start_side_by_side": "asserts a start in less than 7.5 s",
    "conformance/test_updates.py::test_models_load_side_by_side": "asserts loads in less than 5.5 s",
    "faults/test_faulty_connections.py::test_a_client_that_vanishes_in_the_middle_of_a_large_body": "counts descriptors of the server",
    "faults/test_faulty_connections.py::test_large_bodies_that_never_end_do_not_pile_up": "reads resident memory",
    "faults/test_faulty_connections.py::test_many_requests_on_one_connection_leave_nothing_behind": "reads resident memory, counts descriptors",
    "faults/test_faulty_messages.py::test_a_body_announced_beyond_an_int_is_refused": "reads resident memory",
    "hostile/test_attacks.py": "bounds latencies, reads resident memory, counts descriptors, floods the machine",
    "hostile/test_budgets.py": "reads resident memory around each test",
    "hostile/test_careless_backends.py::test_a_client_that_does_not_read_keeps_the_instance_from_nobody": "asserts an answer of another in less than 10 s",
    "hostile/test_collectors.py": "asserts answers below 3 s, stop below 6 s; reads resident memory",
    "hostile/test_configurations.py": "reads resident memory",
    "hostile/test_connections.py::test_a_stop_answers_whole_requests_and_refuses_half_ones": "asserts a stop within 5 s",
    "hostile/test_connections.py::test_a_stop_closes_all_front_ends_by_one_deadline": "asserts an end within 20 s",
    "hostile/test_connections.py::test_a_stop_waits_for_nobody_who_keeps_the_server_waiting": "asserts a stop within 5 s",
    "hostile/test_connections.py::test_whoever_opens_more_connections_than_there_can_be_locks_nobody_out": "counts descriptors; opens 1200 connections",
    "hostile/test_ensemble_memory.py::test_memory_and_descriptors_are_used_again": "counts descriptors of the server",
    "hostile/test_freed_objects.py": "bounds processor time of polls; frees 1 GiB of /dev/shm",
    "hostile/test_graph_memory.py": "reads resident memory in a 512 MiB control group; saturates processors",
    "hostile/test_guard_library.py::test_a_well_behaved_library": "case many reads ru_maxrss and counts its descriptors",
    "hostile/test_idle.py": "counts context switches of threads in windows of 4 s",
    "hostile/test_inflation.py": "reads resident memory; bounds how long health takes",
    "hostile/test_isolated.py": "reads resident memory and counts descriptors around each test",
    "hostile/test_kept.py": "reads resident memory",
    "hostile/test_kills.py": "hundreds of kills; reads resident memory and counts descriptors",
    "hostile/test_leases.py": "reads resident memory and counts descriptors around each test",
    "hostile/test_memory.py": "uploads of 900 MiB take gigabytes",
    "hostile/test_nested_requests.py::test_a_model_that_does_not_read_responses_does_not_fill_the_server": "reads resident memory",
    "hostile/test_operands.py::test_no_operand_ends_the_process": "runs for minutes on all processors",
    "hostile/test_padding.py": "reads resident memory; bounds polls in time",
    "hostile/test_parallel_allocations.py": "over a thousand cases on all processors, over 20 s",
    "hostile/test_passed_descriptors.py": "counts descriptors of the server",
    "hostile/test_punching.py": "1 GiB of /dev/shm; bounds how long others are kept",
    "hostile/test_python_decoupled.py::test_a_model_that_is_faster_than_its_client_waits_for_it": "reads resident memory; asserts less than 2 s",
    "hostile/test_python_decoupled.py::test_clients_that_vanish_leave_nothing_behind": "counts threads",
    "hostile/test_python_endurance.py": "reads resident memory and descriptors",
    "hostile/test_python_greed.py": "prints or keeps up to 1 GiB; reads resident memory",
    "hostile/test_python_memory.py": "reads resident memory and counts descriptors around each test",
    "hostile/test_python_regions.py": "reads resident memory and counts descriptors around each test",
    "hostile/test_python_unguarded.py": "reads resident memory and counts descriptors around each test",
    "hostile/test_quick_path.py": "bounds how long health and polls take",
    "hostile/test_region_owners.py::test_one_user_cannot_take_all_places": "reads resident memory and counts descriptors",
    "hostile/test_regions.py": "reads resident memory and counts descriptors around each test",
    "hostile/test_rendering.py": "bounds polls of front threads in time",
    "hostile/test_request_sizes.py": "asserts that health is answered within 1 s",
    "hostile/test_sandbox.py::test_others_are_answered_while_a_model_in_a_sandbox": "thousands of threads, 1 GiB, all descriptors a process may have",
    "hostile/test_sanitized_backends.py::test_many_loads_leave_nothing_behind": "reads resident memory, counts threads and descriptors",
    "hostile/test_sessions.py": "reads resident memory and counts descriptors around each test",
    "hostile/test_shared_work.py::test_a_client_that_fills_the_cache_takes_no_more_than_its_size": "reads resident memory",
    "hostile/test_shared_work.py::test_clients_that_go_while_they_wait_for_a_resource_leave_it_to_others": "asserts an answer in less than 5 s",
    "hostile/test_shared_work.py::test_large_look_ups_and_hits_keep_no_thread_of_others": "bounds polls of front threads in time",
    "hostile/test_shortages.py::test_clients_that_take_all_descriptors": "takes all descriptors and counts them",
    "hostile/test_shortages.py::test_more_promised_than_there_is_room_for": "reads resident memory; fills a small /dev/shm",
    "hostile/test_strangers.py": "reads resident memory and counts descriptors around each test",
    "hostile/test_strings.py::test_the_memory_of_a_client_with_tiny_strings_is_bounded": "reads resident memory",
    "hostile/test_threads.py::test_a_client_that_asks_for_many_indexes_at_once_gets_few_threads": "counts threads",
    "hostile/test_threads.py::test_many_models_at_start": "counts threads, transient ones too",
    "hostile/test_timeouts.py": "reads resident memory; bounds polls of front threads",
    "hostile/test_tokens.py::test_ten_thousand_wrong_tokens_slow_nobody_and_leave_nothing": "asserts a median below 100 ms; reads resident memory",
    "hostile/test_traces.py::test_a_flood_of_small_requests_fills_no_memory_when_the_disk_is_stuck": "flood of 12 s; asserts a stop below 20 s",
    "hostile/test_traces.py::test_large_tensors_of_traced_requests_hold_bounded_memory_and_delay_nobody": "reads resident memory; bounds polls in time",
    "hostile/test_web_sites.py::test_an_attack_through_the_page_ends_with_its_connections": "reads resident memory and counts descriptors",
    "hostile/test_web_sites.py::test_bodies_that_nobody_reads_or_that_never_come_hold_nothing": "reads resident memory and counts descriptors",
    "hostile/test_web_sites.py::test_thousands_of_requests_for_the_page_keep_nobody_waiting": "reads resident memory and counts descriptors",
    "hostile/test_web_sites.py::test_traces_that_nobody_fetches_are_forgotten": "reads resident memory and counts descriptors",
    "python/tests/test_aio.py::test_a_thousand_cancelled_calls_leave_no_threads_slots_and_leases": "counts threads and descriptors",
    "python/tests/test_aio.py::test_hundreds_of_calls_wait_without_threads": "counts threads of its own process",
    "python/tests/test_aio.py::test_other_protocols_need_no_threads_either": "counts threads; asserts less than 24 s",
    "python/tests/test_call.py::test_a_call_costs_two_system_calls": "counts system calls with strace",
    "python/tests/test_call.py::test_a_request_that_takes_too_long_is_given_up": "asserts an end in less than 2.5 s",
    "python/tests/test_deadline.py::test_a_server_that_never_speaks_is_given_up": "asserts an end in less than 3 s",
    "python/tests/test_deadline.py::test_connecting_counts": "asserts an end in less than 3 s",
    "python/tests/test_deadline.py::test_many_threads_on_few_connections_all_end_in_time": "asserts an end in less than 3 s",
    "python/tests/test_deadline.py::test_messages_about_something_else_do_not_prolong_it": "asserts an end in less than 3 s",
    "python/tests/test_deadline.py::test_the_queue_of_the_threads_counts": "asserts an end in less than 3 s",
    "python/tests/test_deadline.py::test_waiting_for_a_connection_counts": "asserts an end in less than 3 s",
    "python/tests/test_fork.py::test_many_forks_keep_no_memory": "300 forks; counts descriptors",
    "python/tests/test_placed.py::test_no_descriptor_stays_open": "counts descriptors",
    "python/tests/test_reconnection.py::test_the_wait_for_a_server_that_is_gone_is_bounded": "asserts less than 3 s and less than 6 s",
    "python/tests/test_register_in_time.py::test_the_same_holds_over_http": "asserts an end in less than 5 s",
    "python/tests/test_register_in_time.py::test_the_timeout_of_a_call_holds_for_its_regions": "asserts an end in less than 5 s",
    "python/tests/test_register_in_time.py::test_the_timeout_of_the_drop_in_client_holds_for_its_regions": "asserts an end in less than 5 s",
    "python/tests/test_session.py::test_refused_leases_leave_no_descriptor": "counts descriptors",
    "python/tests/test_streams.py::test_a_stream_ends_at_its_timeout": "asserts an end in less than 3 s",
    "python/tests/test_streams.py::test_a_timeout_is_for_all_responses_together": "asserts an end in less than 3 s",
}

LONG = (
    "fleet/test_bucket.py",
    "fleet/test_fleet.py",
    "hostile/test_breaking_backends.py",
    "hostile/test_connections.py",
    "hostile/test_isolated_backends.py",
    "hostile/test_operands.py",
    "hostile/test_python_large.py",
    "hostile/test_region_owners.py",
    "hostile/test_sanitized_backends.py",
    "hostile/test_session_socket.py",
    "hostile/test_waiting_backends.py",
    # These need `cargo xtask tensorflow`.
    "conformance/test_tensorflow.py",
    "hostile/test_tensorflow_graphs.py",
    "onnx_models/test_onnx_models.py::test_every_model_that_loads_is_right[light-embedded]",
    "onnx_models/test_onnx_models.py::test_every_model_that_loads_is_right[light-onnxruntime]",
    "packaging",
    "page",
    "perf_analyzer",
)

ORACLE = (
    "gpu/test_real_gpu.py",
    "oracle",
    "peer/test_peer.py",
    "python/tests/test_examples.py::test_an_example_runs[loader.py-http]",
    "python/tests/test_examples.py::test_an_example_runs[loader.py-session]",
    "python/tests/test_handles.py::test_torch_shares_the_memory",
    "python/tests/test_model_dlpack.py::test_torch_reads_inputs_and_views",
    "python/tests/test_model_utils.py::test_a_tensor_of_torch_goes_both_ways",
    "python/tests/test_placed.py::test_another_kind_of_server_is_not_that_of_a_socket_found_by_default",
    "real",
)


def row_of(item: pytest.Item) -> str:
    """The test as a row names it."""
    path = item.path.relative_to(ROOT).as_posix().removeprefix("tests/")
    return "::".join([path, *item.nodeid.split("::")[1:]])


def is_named(row: str, rows) -> bool:
    return any(row == one or row.startswith((f"{one}::", f"{one}[", f"{one}/")) for one in rows)


def suite_of(item: pytest.Item) -> str:
    row, parameters = row_of(item), item.callspec.params if hasattr(item, "callspec") else {}
    # Tests of the package that ask the real Triton, or look into its module.
    asks_triton = "triton" in (parameters.get("server"), parameters.get("kind"), *item.fixturenames)
    if is_named(row, ORACLE) or asks_triton:
        return "oracle"
    if is_named(row, ALONE):
        return "alone"
    return "long" if is_named(row, LONG) else "gate"


def is_left_out(path: pathlib.Path, config: pytest.Config) -> bool:
    """Whether the suite that was asked for has nothing of this file or folder, so that it need not be read."""
    suite, row = config.getoption("--suite"), path.relative_to(ROOT).as_posix().removeprefix("tests/")
    tables = {"alone": tuple(ALONE), "long": LONG, "oracle": ORACLE}
    return suite in ("gate", *tables) and any(is_named(row, rows) for name, rows in tables.items() if name != suite)


def add_option(parser: pytest.Parser) -> None:
    # Where one run has both folders of tests, the other one has added it.
    with contextlib.suppress(ValueError):
        parser.addoption("--suite", choices=SUITES, help="which tests: %(choices)s (default: all)")


def check_rows() -> None:
    """Fails if a row names a file that is not there."""
    files = [row.partition("::")[0] for row in (*QUICK, *ALONE, *LONG, *ORACLE)]
    missing = [file for file in files if not any((ROOT / top / file).exists() for top in ("", "tests"))]
    if missing:
        raise pytest.UsageError(f"tests/suites.py names files that are not there: {', '.join(missing)}")


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the tests of the suite that was asked for."""
    suite = config.getoption("--suite")
    if suite is None:
        return
    chosen = [item for item in items if (is_named(row_of(item), QUICK) if suite == "quick" else suite_of(item) == suite)]
    left_out = set(items) - set(chosen)
    items[:] = chosen
    config.hook.pytest_deselected(items=list(left_out))
