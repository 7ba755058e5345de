#!/usr/bin/env python3
"""What does one call of a model cost a Python program, beside tritonclient in the same run?

    cargo build --release -p nerite-server
    .venv/bin/python benches/call.py                     # about a minute; NERITE_BIN names another binary

One program and one server, each case three times in turns; the table has medians of the three p50. Cases:

* one core: server and program share a core, so that nobody sleeps while the other works;
* two cores: each has its own, and falls asleep between packets.

Beside it stand the bare round trip of six bytes through a socket of the same kind, with another process, and `tritonclient` with its
tensors in the messages, which is the way that its examples go.
"""

import argparse
import contextlib
import os
import pathlib
import socket
import statistics
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / "tests" / "conformance"), str(ROOT / "tests" / "models"), str(ROOT / "python")]

import make_models  # noqa: E402
import numpy as np  # noqa: E402
import servers  # noqa: E402
import tritonclient.grpc  # noqa: E402
import tritonclient.http  # noqa: E402

import nerite  # noqa: E402

RUNS = 3
LARGE_BYTES = 64 << 20


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--calls", type=int, default=2000, help="calls of a case in each of the three runs")
    calls = options.parse_args().calls
    cores = sorted(os.sched_getaffinity(0))
    print(f"p50 in us, medians of {RUNS} runs of {calls} calls; load average {os.getloadavg()[0]:.1f} on {len(cores)} cores\n")
    print("| case | bare round trip | tritonclient.http | tritonclient.grpc | nerite | nerite / http | nerite / grpc |")
    print("|---|---|---|---|---|---|---|")
    places = [("one core", cores[0], cores[0])]
    if len(cores) > 1:
        places.append(("two cores", cores[0], cores[1]))
    for place, own, theirs in places:
        os.sched_setaffinity(0, {own})
        with tempfile.TemporaryDirectory() as folder, serving(pathlib.Path(folder), theirs) as server:
            with echoing(theirs) as bare:
                measure(place, server, bare, calls)
            if own == theirs:
                more(server, calls)


def measure(place: str, server, bare, calls: int) -> None:
    session = nerite.connect(f"unix:{server.session_socket}")
    for name, model, array in [
        ("identity 64 B", "identity_fp32", np.ones(16, np.float32)),
        ("simple", "simple", np.ones((1, 16), np.int32)),
    ]:
        called = session.model(model)
        arrays = [array] * len(called.inputs)
        ways = {
            "bare": bare,
            "http": ordinary(tritonclient.http, server.http, called, arrays),
            "grpc": ordinary(tritonclient.grpc, server.grpc, called, arrays),
            "nerite": lambda called=called, arrays=arrays: called(*arrays),
        }
        found = medians(ways, calls)
        print(
            f"| {name}, {place} | {found['bare']:.1f} | {found['http']:.0f} | {found['grpc']:.0f} | {found['nerite']:.1f} | "
            f"{found['nerite'] / found['http']:.2f} | {found['nerite'] / found['grpc']:.2f} |",
            flush=True,
        )
    session.close()


def more(server, calls: int) -> None:
    """What has no counterpart."""
    with nerite.connect(f"unix:{server.session_socket}") as client:
        identity = client.model("identity_fp32")
        many = [np.ones(16, np.float32)] * 32
        found = medians({"batch": lambda: identity.batch(many)}, max(calls // 32, 20))["batch"] / 32
        buffer = identity.input("INPUT0", [LARGE_BYTES // 4])
        target = np.empty_like(buffer)
        buffer[:] = 1
        for _ in range(3):
            identity()
        before = client.copied_bytes
        large = medians({"copy": lambda: np.copyto(target, buffer), "call": lambda: identity()}, 10)
        print(f"\n`batch` of 32 identities of 64 B, one core: {found:.1f} us each")
        print(
            f"identity of 64 MiB, buffer lent: {large['call'] / 1000:.1f} ms, one memcpy {large['copy'] / 1000:.1f} ms; the client copied "
            f"{client.copied_bytes - before} bytes\n"
        )


def medians(ways, calls: int) -> dict[str, float]:
    """The median of the p50 of three runs, in us, of each way."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(RUNS):
        for name, infer in ways.items():
            for _ in range(max(calls // 20, 3)):
                infer()
            times = []
            for _ in range(calls):
                begun = time.perf_counter_ns()
                infer()
                times.append(time.perf_counter_ns() - begun)
            found[name].append(statistics.median(times) / 1000)
    return {name: statistics.median(runs) for name, runs in found.items()}


def ordinary(library, url: str, model, arrays):
    """One inference with tritonclient, as a program would write it."""
    client = library.InferenceServerClient(url)

    def infer():
        inputs = []
        for spec, array in zip(model.inputs, arrays):
            given = library.InferInput(spec.name, list(array.shape), spec.datatype)
            given.set_data_from_numpy(array)
            inputs.append(given)
        result = client.infer(model.name, inputs)
        return [result.as_numpy(spec.name) for spec in model.outputs]

    return infer


@contextlib.contextmanager
def serving(folder: pathlib.Path, core: int):
    models = folder / "models"
    make_models.make_conformance(models)
    command, environment = servers.nerite_command(models)
    path = folder / "session.sock"
    wanted = [f"--load-model={name}" for name in ("simple", "identity_fp32")]
    flags = [f"--session-socket={path}", "--model-control-mode=explicit", *wanted]
    started = servers.start(["taskset", "-c", str(core), *command], environment, flags, folder / "log")
    started.session_socket = path
    try:
        yield started
    finally:
        servers.stop(started)


@contextlib.contextmanager
def echoing(core: int):
    """A process that sends back what it gets."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        mine.close()
        os.sched_setaffinity(0, {core})
        while packet := theirs.recv(64):
            theirs.send(packet)
        os._exit(0)
    theirs.close()

    def infer():
        mine.send(b"123456")
        mine.recv(64)

    try:
        yield infer
    finally:
        mine.close()
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
