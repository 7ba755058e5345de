"""Does a backend in C see memory of the server's only where it may, and is nothing left of it after many loads?

The backends are built with AddressSanitizer, whose library is loaded before the server: what they read or write outside of memory that they have, or
after its end, ends the server with a report. Memory that the server gives them is of the same allocator.

    NERITE_LOADS=10000 pytest -s tests/hostile/test_sanitized_backends.py
"""

import concurrent.futures
import os
import subprocess

import numpy as np
import pytest
from clients import Given, RequestedOutput, fp32, grpc_channel, http_call, int32, open_client
from compiled_setup import compiled, environment, put, serving
from footprint import resident_mib
from regions import registered
from test_compiled_sequences import SUM, TWO, Sequence
from test_decoupled import Stream

DECOUPLED = "model_transaction_policy { decoupled: true }"
SOURCES = ("sample", "asking", "sequences")
# A report names the place; leaks of a server that lives on are looked for by the loads below.
OPTIONS = "detect_leaks=0:halt_on_error=1:exitcode=99:handle_segv=0:handle_sigbus=0:handle_abort=0"
LOADS = int(os.environ.get("NERITE_LOADS", "200"))


def sanitizer() -> str:
    found = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout.strip()
    if not os.path.isabs(found):
        pytest.skip("the C compiler has no AddressSanitizer")
    # The file may be a script of the linker.
    shown = subprocess.run(["cc", "-print-file-name=libasan.so.8"], capture_output=True, text=True, check=True).stdout.strip()
    return os.path.realpath(shown if os.path.isabs(shown) else found)


@pytest.fixture
def sanitized(launcher, request):
    if launcher.oracle:
        pytest.skip("of this server")
    name = f"sanitized_{request.node.name.split('[')[0][-12:]}"
    repository, backends = launcher.scratch / name, launcher.scratch / f"{name}_backends"
    put(repository, "c_identity", pairs=2)
    put(repository, "c_add_sub", "add_sub", pairs=2)
    put(repository, "c_tell", "tell")
    put(repository, "c_fail", "fail")
    put(repository, "c_late", "late", delay_ms="50")
    put(repository, "c_overrun", "overrun")
    put(repository, "c_repeat", "repeat", datatype="INT32", more=DECOUPLED)
    put(repository, "asking", backend="asking", more="instance_group { kind: KIND_CPU count: 2 }")
    put(repository, "asking_two", backend="asking", pairs=2)
    put(repository, "asking_repeat", backend="asking", datatype="INT32", more=DECOUPLED)
    put(repository, "c_plain")
    folder = put(repository, "c_sum", "sum", more=SUM + TWO, backend="sequences")
    (folder / "initial_state").mkdir()
    (folder / "initial_state" / "ten").write_bytes(np.float32(10).tobytes())
    for source in SOURCES:
        compiled(backends / source / f"libtriton_{source}.so", source=source, flags=("-g", "-fsanitize=address"))
    flags = [f"--backend-directory={backends}", "--model-control-mode=explicit", "--load-model=*"]
    with environment(LD_PRELOAD=sanitizer(), ASAN_OPTIONS=OPTIONS):
        with launcher.running(name, *flags, repository=repository) as found:
            yield found


def numbers(reply, output: str = "OUT") -> list[float]:
    return np.frombuffer(reply.outputs[output].raw, np.float32).tolist()


def infer_all(server, n: int) -> None:
    with open_client("grpc" if n % 2 else "http", server) as client:
        two = [fp32("IN", [n, 7]), fp32("IN1", [1, 2])]
        assert numbers(client.infer("c_identity", two)) == [n, 7]
        assert numbers(client.infer("c_add_sub", two)) == [n + 1, 9]
        client.infer("c_tell", [fp32("IN", [1])], parameters={"said": "x", "count": 7, "yes": True})
        assert numbers(client.infer("c_late", [fp32("IN", [n])])) == [n]
        for parts in (1, 3):
            assert numbers(client.infer("asking_two", two, parameters={"target": "c_add_sub", "parts": parts})) == [n + 1, 9]
        for target in ("c_fail", "nobody", "c_add_sub"):
            with pytest.raises(Exception, match="fails on purpose|is not found|expected 2 inputs"):
                client.infer("asking", [fp32("IN", [1])], parameters={"target": target, "wait": n % 2})
        one = Sequence(client, "c_sum")
        assert [one.sum(1), one.sum(2, end=True)] == [11, 13]
        with registered(client, 8192, np.arange(1024, dtype=np.float32).tobytes()) as made:
            given, outputs = [Given("IN", "FP32", [1024], region=(made.name, 4096, 0))], [RequestedOutput("OUT", (made.name, 4096, 4096))]
            client.infer("asking", given, outputs, parameters={"target": "c_plain"})


def repeat(server, model: str, **parameters) -> None:
    with grpc_channel(server.grpc) as channel:
        stream = Stream(channel)
        given_parameters = {"triton_enable_empty_final_response": True} | parameters
        stream.sent.put(stream.client.request(model, [int32("IN", list(range(100)))], None, id="r", parameters=given_parameters))
        while not next(stream.call).infer_response.parameters["triton_final_response"].bool_param:
            pass
        stream.sent.put(None)


def test_backends_touch_only_what_is_theirs(sanitized):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: infer_all(sanitized, n), range(20)))
    repeat(sanitized, "c_repeat")
    repeat(sanitized, "asking_repeat", target="c_repeat")
    with open_client("http", sanitized) as client:
        for _ in range(3):
            for model in ("asking", "c_sum", "c_late", "c_repeat", "c_plain"):
                client.unload(model)
                client.load(model)
        infer_all(sanitized, 3)
    assert "AddressSanitizer" not in sanitized.log_text()


def test_what_is_outside_is_found(sanitized):
    """Else the test above could not fail."""
    with open_client("http", sanitized) as client, pytest.raises(Exception):
        client.infer("c_overrun", [fp32("IN", [1])])
    assert "AddressSanitizer: heap-buffer-overflow" in sanitized.log_text()


def test_many_loads_leave_nothing_behind(launcher):
    if launcher.oracle:
        pytest.skip("of this server")
    repository = launcher.scratch / "many_loads"
    put(repository, "well")
    put(repository, "asking", backend="asking")
    flags = ["--model-control-mode=explicit", "--load-model=*", "--log-info=false"]
    with serving(launcher, "many_loads", repository, *flags, sources=("sample", "asking")) as server, open_client("http", server) as client:

        def load_and_infer(times: int) -> None:
            for _ in range(times):
                for model in ("well", "asking"):
                    client.unload(model)
                    client.load(model)
                reply = client.infer("asking", [fp32("IN", [5])], parameters={"target": "well"})
                assert numbers(reply) == [5]

        def held() -> tuple[int, int, int]:
            process = f"/proc/{server.process.pid}"
            with open(f"{process}/maps", encoding="utf-8") as maps:
                return len(os.listdir(f"{process}/fd")), sum(1 for _ in maps), len(os.listdir(f"{process}/task"))

        # What is kept for reuse has its size then.
        load_and_infer(LOADS // 5)
        before, (files, mapped, threads) = resident_mib(server.process.pid), held()
        load_and_infer(LOADS)
        after, (files_after, mapped_after, threads_after) = resident_mib(server.process.pid), held()
        print(
            f"{LOADS} loads and unloads of 2 models: {before:.1f} MiB before, {after:.1f} MiB after; {files} and {files_after} descriptors, {mapped} and "
            f"{mapped_after} mappings, {threads} and {threads_after} threads"
        )
        assert after - before < 4 + LOADS / 1000, (before, after)
        assert threads_after - threads < 8, (threads, threads_after)
        assert files_after - files < 20 and mapped_after - mapped < 60, (files, files_after, mapped, mapped_after)
        assert http_call(server.http, "GET", "/v2/health/ready").status == 200
