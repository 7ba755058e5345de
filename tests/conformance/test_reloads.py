"""Does a model change under traffic without a failed request, and do a thousand loads leave nothing behind?

    NERITE_RELOADS_S=60 pytest -s tests/conformance/test_reloads.py -k request_fails    for so long
    NERITE_PYTHON_LOADS=1000 pytest -s tests/conformance/test_reloads.py -k behind      as many loads of a Python model
"""

import os
import pathlib
import shutil
import threading
import time

import pytest
import servers
from clients import fp32, open_client
from footprint import children, descriptors, resident_mib, wait_until
from python_catalogue import SOURCES
from python_setup import PATIENT

SECONDS = float(os.environ.get("NERITE_RELOADS_S", "4"))
RELOADS_MIN = 3
LOADS = 1000
# The first loads take what a process keeps: threads' stacks, pools, tables.
WARM_LOADS = 30
# Each load of a Python model starts an interpreter.
PYTHON_LOADS = int(os.environ.get("NERITE_PYTHON_LOADS", "20"))
PYTHON_WARM_LOADS = 5
SLACK_MIB = 8
CONFIG = '''\
name: "%s"
backend: "%s"
max_batch_size: 8
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]
parameters { key: "turn" value { string_value: "%d" } }
'''


def put_configured(repository: pathlib.Path, name: str, backend: str, turn: int) -> None:
    (repository / name / "1").mkdir(parents=True, exist_ok=True)
    # Whole or not at all: the server may look at any moment.
    half = repository / name / "half"
    half.write_text(CONFIG % (name, backend, turn))
    half.rename(repository / name / "config.pbtxt")


def put_identity(repository: pathlib.Path, name: str, turn: int) -> None:
    put_configured(repository, name, "identity", turn)


def put_python(repository: pathlib.Path, name: str, turn: int) -> None:
    put_configured(repository, name, "python", turn)
    shutil.copy(SOURCES / "identity.py", repository / name / "1" / "model.py")


def put_onnx(repository: pathlib.Path, name: str, turn: int) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    half = repository / name / "half"
    shutil.copy(servers.ROOT / "crates" / "onnx" / "tests" / "models" / "echo_fp32.onnx", half)
    # Newer than the last, whatever the clock's steps are.
    os.utime(half, ns=(turn * 1_000_000_000, turn * 1_000_000_000))
    half.rename(version / "model.onnx")


KINDS = {
    "identity": (put_identity, "INPUT0", "OUTPUT0"),
    "onnx": (put_onnx, "x", "y"),
    "python": (put_python, "INPUT0", "OUTPUT0"),
}


@pytest.fixture(params=list(KINDS))
def kind(request, launcher):
    if launcher.oracle and request.param != "python":
        pytest.skip("2.51 here has only the Python backend")
    return request.param


@pytest.fixture
def server(launcher, tmp_path, kind):
    if any(launcher.urls):
        pytest.skip("needs a server of its own")
    put, _, _ = KINDS[kind]
    put(tmp_path, "steady", 1)
    flags = [] if launcher.oracle else [servers.onnxruntime_flag()]
    with launcher.running(
        f"reloads_{kind}", PATIENT, *flags, "--model-control-mode=explicit", "--load-model=steady", repository=tmp_path
    ) as found:
        yield found


def infer(client, kind: str, shape: list[int]) -> None:
    _, given, wanted = KINDS[kind]
    reply = client.infer("steady", [fp32(given, [1, 2, 3], shape)])
    assert reply.outputs[wanted].raw == fp32("", [1, 2, 3]).raw


def under_traffic(server, kind: str, seconds: float) -> tuple[int, int, list[str]]:
    """Requests and reloads that were made side by side for so long, and what failed."""
    put, _, _ = KINDS[kind]
    is_over, faults, counts = threading.Event(), [], []
    shape = [3, 1] if kind == "onnx" else [1, 3]

    def traffic(protocol: str) -> None:
        count = 0
        with open_client(protocol, server) as client:
            while not is_over.is_set():
                try:
                    infer(client, kind, shape)
                except Exception as fault:  # noqa: BLE001
                    faults.append(str(fault))
                count += 1
        counts.append(count)

    threads = [threading.Thread(target=traffic, args=(protocol,)) for protocol in ("http", "grpc") * 2]
    for thread in threads:
        thread.start()
    reloads, until = 0, time.monotonic() + seconds
    with open_client("http", server) as client:
        while time.monotonic() < until or reloads < RELOADS_MIN:
            put(server.repository, "steady", reloads + 2)
            client.load("steady")
            reloads += 1
    is_over.set()
    for thread in threads:
        thread.join()
    return sum(counts), reloads, faults


def test_no_request_fails_while_a_model_is_reloaded(server, kind):
    requests, reloads, faults = under_traffic(server, kind, SECONDS)
    print(f"{kind}: {requests} requests beside {reloads} reloads")
    assert requests > 0
    assert not faults, (len(faults), faults[:3])
    assert server.log_text().count("loading: steady:1") == reloads + 1, "each was a reload"


def mappings(pid: int) -> int:
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        return sum(1 for _ in maps)


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def settled(pid: int) -> tuple[float, int, int, int]:
    """What the process holds once what a load left is given back: the least of a few seconds."""
    found = []
    for _ in range(24):
        time.sleep(0.25)
        found.append((resident_mib(pid), mappings(pid), len(descriptors(pid)), threads(pid)))
    return tuple(min(values) for values in zip(*found))


def test_loads_and_unloads_leave_nothing_behind(server, kind):
    put, _, _ = KINDS[kind]
    put(server.repository, "comes_and_goes", 1)
    warm, count = (PYTHON_WARM_LOADS, PYTHON_LOADS) if kind == "python" else (WARM_LOADS, LOADS)

    def loads(count: int) -> None:
        with open_client("http", server) as client:
            for _ in range(count):
                client.load("comes_and_goes")
                client.unload("comes_and_goes")

    processes = children(server.pid)
    loads(warm)
    before = settled(server.pid)
    loads(count)
    after = settled(server.pid)
    print(f"{kind}: {count} loads; MiB, mappings, descriptors, threads: {before} -> {after}")
    assert after[0] <= before[0] + SLACK_MIB, (before, after)
    # The allocator keeps a few mappings more or less. A load that left one behind would leave as many as there were loads.
    assert after[1] <= before[1] + max(16, count // 20), (before, after)
    assert after[2] == before[2], (before, after)
    assert after[3] <= before[3] + 2, (before, after)
    wait_until(lambda: children(server.pid) == processes)
