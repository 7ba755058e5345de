"""What does one call of a model cost a program: T10?

Two places are measured: on one core server and program never sleep at the same time; on two, each falls asleep between packets. Beside a
session stands the bare round trip of a packet of the same kind, and `tritonclient` with its tensors in the messages, as its examples have them.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from .report import LIMIT, OURS, Bound, Table
from .repositories import ROOT
from .sides import Run, Side, running, with_flags

sys.path.append(str(ROOT / "python"))

import tritonclient.grpc  # noqa: E402
import tritonclient.http  # noqa: E402

import nerite  # noqa: E402

MODEL = "identity_fp32"
LIBRARIES = {"tritonclient.http": tritonclient.http, "tritonclient.grpc": tritonclient.grpc}
CALLS = 1000
LARGE_BYTES = 64 << 20
TOGETHER = 32
# The program whose figures are those of the Rust client, its lines, and what they are called here.
RUST_PROGRAM = ROOT / "target" / "release" / "examples" / "session_latency"
RUST_LINES = {"inference": "a request", "prepared": "prepared", "32 in a packet": "32 in a packet, each"}
RUST_PLUS_US = 8
ECHO = """
import socket, sys
with socket.socket(fileno=int(sys.argv[1])) as end:
    while packet := end.recv(64):
        end.send(packet)
"""


def calls(run: Run) -> list[Table]:
    table = Table("identity of 64 B from Python; limit: a packet there and back")
    cores = sorted(os.sched_getaffinity(0))
    places = {"one core": cores[0]} | ({"two cores": cores[1]} if len(cores) > 1 else {})
    tables = [table]
    for place, core in places.items():
        path = run.scratch / "session.sock"
        sides = [on_core(run.peer, core), on_core(with_flags(run.ours, f"--session-socket={path}"), core)]
        os.sched_setaffinity(0, {cores[0]})
        try:
            with running(sides, run.scratch):
                python_lines(run, table, place, sides, path, core)
                if place == "one core":
                    tables += [batches(run, path), lent(path), rust_client(path)]
        finally:
            os.sched_setaffinity(0, set(cores))
    return tables


def on_core(side: Side, core: int) -> Side:
    return dataclasses.replace(side, command=["taskset", "-c", str(core), *side.command], server=None)


def python_lines(run: Run, table: Table, place: str, sides: list[Side], path: pathlib.Path, core: int) -> None:
    array = np.ones(16, np.float32)
    with contextlib.ExitStack() as held:
        session = held.enter_context(nerite.connect(f"unix:{path}"))
        model = session.model(MODEL)
        ways = {(LIMIT, "nerite, session"): held.enter_context(echoing(core)), (OURS, "nerite, session"): lambda: model(array)}
        for side in sides:
            for name, library in LIBRARIES.items():
                address = side.address(name.rpartition(".")[2])
                ways[side.role, name] = ordinary(library, address, array)
        found = p50s(ways, run.options.runs, CALLS)
    for name in ("nerite, session", *LIBRARIES):
        table.add(f"{name}, {place}", {role: {"p50_us": value} for (role, way), value in found.items() if way == name})


def batches(run: Run, path: pathlib.Path) -> Table:
    with nerite.connect(f"unix:{path}") as session:
        model, many = session.model(MODEL), [np.ones(16, np.float32)] * TOGETHER
        found = p50s({OURS: lambda: model.batch(many)}, run.options.runs, CALLS // TOGETHER)
    table = Table("Python, one core")
    table.add(f"batch of {TOGETHER} identities of 64 B, each", {OURS: {"p50_us": found[OURS] / TOGETHER}})
    return table


def lent(path: pathlib.Path) -> Table:
    """A buffer of a session that the model reads and writes in place."""
    with nerite.connect(f"unix:{path}") as session:
        model = session.model(MODEL)
        buffer = model.input("INPUT0", [LARGE_BYTES // 4])
        target = np.empty_like(buffer)
        buffer[:] = 1
        for _ in range(3):
            model()
        found = p50s({LIMIT: lambda: np.copyto(target, buffer), OURS: lambda: model()}, 2, 5)
    table = Table("Python, one core; limit: one memcpy")
    table.add("identity of 64 MiB, buffer lent", {role: {"p50_us": value} for role, value in found.items()})
    return table


def rust_client(path: pathlib.Path) -> Table:
    table = Table("Rust client, identity of 64 B through a lease, one core; limit: a packet of 320 bytes there and back")
    if not RUST_PROGRAM.exists():
        table.remark = "not built: cargo build --release -p nerite-client --example session_latency"
        return table
    done = subprocess.run([RUST_PROGRAM, path, "6000", MODEL], stdout=subprocess.PIPE, text=True, check=True)
    found = read_latencies(done.stdout)
    for line, what in RUST_LINES.items():
        bounds = [Bound("p50_us", most=1, of=LIMIT, plus=RUST_PLUS_US)] if line == "prepared" else []
        table.add(what, {LIMIT: {"p50_us": found["bare ping-pong"]}, OURS: {"p50_us": found[line]}}, *bounds)
    return table


def read_latencies(text: str) -> dict[str, float]:
    """Lines such as `prepared   11.0µs p50   20.1µs p99`, in microseconds."""
    units = {"ns": 0.001, "µs": 1, "ms": 1000}
    found = re.findall(r"^(.+?)\s+([\d.]+)(ns|µs|ms) p50", text, re.MULTILINE)
    return {name: float(value) * units[unit] for name, value, unit in found}


def p50s(ways: dict, rounds: int, count: int) -> dict:
    """The median of each way's p50, in µs. A round is A B B A."""
    found: dict = {name: [] for name in ways}
    for _ in range(rounds):
        for name in (*ways, *reversed(ways)):
            found[name].append(timed(ways[name], count))
    return {name: statistics.median(times) for name, times in found.items()}


def timed(call: Callable[[], object], count: int) -> float:
    for _ in range(max(count // 20, 3)):
        call()
    times = []
    for _ in range(count):
        begun = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - begun)
    return statistics.median(times) / 1000


def ordinary(library, url: str, array: np.ndarray) -> Callable[[], object]:
    """One inference with tritonclient, as a program would write it."""
    client = library.InferenceServerClient(url)

    def infer():
        given = library.InferInput("INPUT0", list(array.shape), "FP32")
        given.set_data_from_numpy(array)
        return client.infer(MODEL, [given]).as_numpy("OUTPUT0")

    return infer


@contextlib.contextmanager
def echoing(core: int):
    """A process that sends back what it gets. No fork of this process, because threads of gRPC do not survive one."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = ["taskset", "-c", str(core), sys.executable, "-c", ECHO, str(theirs.fileno())]
    child = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    theirs.close()

    def infer():
        mine.send(b"123456")
        mine.recv(64)

    try:
        infer()
        yield infer
    finally:
        mine.close()
        child.wait()
