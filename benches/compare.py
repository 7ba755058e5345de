#!/usr/bin/env python3
"""How does nerite compare with the real Triton, in the same run on the same machine?

    cargo build --release -p nerite-server -p nerite-bench
    python benches/compare.py                        # about 25 minutes; --quick for 3
    python benches/compare.py --only load --bytes 64,4M --concurrency 1

Both servers run side by side, and `nerite-bench` measures one cell on one, then the same cell on the other, then the
next; the whole is repeated, and the table shows medians. What is not measured stands idle beside it. The peer comes
from the PyPI wheel that tests/conformance/triton.py names (TRITON_ORACLE: the environment that holds it), whose only
backend is the Python one; with --peer-backends DIR, a folder with `identity/libtriton_identity.so`, its C++ identity is
measured instead. Prints Markdown.
"""

import argparse
import contextlib
import dataclasses
import http.client
import importlib.util
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "conformance"))

import servers  # noqa: E402
import triton  # noqa: E402

SECTIONS = ("load", "copy", "growth", "network", "start", "memory", "size")
READY_LIMIT_S = 60
SETTLE_S = 5
STARTS = 5
REGIONS = (1, 100, 10_000)

ECHO_MODEL = '''\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", one)]) for one in inputs]
'''


@dataclasses.dataclass
class Side:
    """One of the two servers: what it is called in the tables, and how it is started over its repository."""

    name: str
    model: str
    command: list[str]
    environment: dict[str, str]
    server: servers.Server | None = None


# ---------------------------------------------------------------------------------------------------------------------
# Setting up


def write_identity(repository: pathlib.Path, backend: str) -> None:
    """The one model that is measured: FP32 of any length, returned as it came."""
    example = (ROOT / "examples" / "models" / "identity_fp32" / "config.pbtxt").read_text()
    folder = repository / "identity_fp32"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(example.replace('backend: "identity"', f'backend: "{backend}"'))
    if backend == "python":
        (folder / "1" / "model.py").write_text(ECHO_MODEL)


def write_digits(repository: pathlib.Path, backend: str) -> None:
    """A small network: run by nerite itself, or by onnxruntime in a Python model."""
    folder = repository / "digits"
    shutil.copytree(ROOT / "examples" / "models" / "digits", folder)
    if backend == "python":
        config = folder / "config.pbtxt"
        config.write_text(config.read_text().replace('platform: "onnxruntime_onnx"', 'backend: "python"'))
        (folder / "1" / "model.py").write_text(triton.GENERIC_MODEL)


def make_sides(scratch: pathlib.Path, peer_backends: pathlib.Path | None) -> list[Side]:
    ours, theirs = scratch / "nerite", scratch / "peer"
    write_identity(ours, "identity")
    peer_backend = "identity" if peer_backends else "python"
    write_identity(theirs, peer_backend)
    if importlib.util.find_spec("onnxruntime"):
        write_digits(ours, "onnx")
        write_digits(theirs, "python")
    command, environment = triton.command(theirs, scratch)
    if peer_backends:
        command = [flag for flag in command if not flag.startswith("--backend-directory")]
        command.append(f"--backend-directory={peer_backends}")
    kind = "C++" if peer_backends else "Python"
    return [
        Side("nerite", "identity, built in", *servers.nerite_command(ours)),
        Side("Triton 2.51", f"identity, {kind}", command, environment),
    ]


@contextlib.contextmanager
def running(sides: list[Side], scratch: pathlib.Path):
    """Both servers up and ready, both down afterwards."""
    try:
        for side in sides:
            log = scratch / f"{side.command[0].rsplit('/', 1)[-1]}.log"
            side.server = servers.start(side.command, side.environment, [], log)
            wait_ready(side.server.http)
        yield
    finally:
        for side in sides:
            if side.server is not None:
                servers.stop(side.server)
                side.server = None


def is_ready(address: str) -> bool:
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def wait_ready(address: str) -> None:
    deadline = time.monotonic() + READY_LIMIT_S
    while not is_ready(address):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{address} is not ready after {READY_LIMIT_S} s")
        time.sleep(0.001)


def bench_binary() -> str:
    return os.environ.get("NERITE_BENCH_BIN", str(ROOT / "target" / "release" / "nerite-bench"))


def bench(*arguments: str) -> list[dict]:
    """One run of the load generator: its JSON lines."""
    done = subprocess.run([bench_binary(), *arguments, "--json"], stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------------------------------------
# Load: T1, T2, T3


def cells(options) -> list[tuple[str, str, str, str]]:
    """Protocol, placement, bytes, concurrency."""
    return [
        (protocol, placement, size, concurrency)
        for placement in ("shm", "inline")
        for size in options.bytes.split(",")
        for concurrency in options.concurrency.split(",")
        for protocol in ("grpc", "http")
    ]


def measure_cell(side: Side, cell: tuple[str, str, str, str], options, *more: str) -> dict:
    protocol, placement, size, concurrency = cell
    address = side.server.http if protocol == "http" else side.server.grpc
    return bench(
        f"--{protocol}={address}", f"--placement={placement}", f"--bytes={size}", f"--concurrency={concurrency}",
        f"--seconds={options.seconds}", f"--warm-up={options.seconds / 3}", f"--pids={side.server.pid}",
        *more,
    )[0]


def median(results: list[dict], key: str) -> float:
    return statistics.median(result[key] for result in results)


def ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f}" if theirs else "–"


def load_table(sides: list[Side], options) -> list[str]:
    grid = cells(options)
    found: dict = {}
    for run in range(options.runs):
        for at, cell in enumerate(grid):
            # Who goes first alternates, so that neither always meets the caches the other left.
            for side in sides if (run + at) % 2 == 0 else reversed(sides):
                found.setdefault((cell, side.name), []).append(measure_cell(side, cell, options))
            note(f"  run {run + 1}/{options.runs}, cell {at + 1}/{len(grid)}: {' '.join(cell)}")
    ours, theirs = (side.name for side in sides)
    lines = [
        f"| request | infer/s {ours} | {theirs} | ratio | p50 µs {ours} | {theirs} | ratio "
        f"| server CPU µs {ours} | {theirs} | ratio |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for cell in grid:
        protocol, placement, size, concurrency = cell
        columns = []
        for key, digits in (("per_second", 0), ("p50_us", 0), ("server_cpu_us", 1)):
            pair = [median(found[cell, side.name], key) for side in sides]
            columns += [f"{value:,.{digits}f}" for value in pair] + [ratio(*pair)]
        name = f"{'gRPC' if protocol == 'grpc' else 'HTTP'} {placement}, {size} B, c{concurrency}"
        lines.append(f"| {name} | {' | '.join(columns)} |")
    return lines


# ---------------------------------------------------------------------------------------------------------------------
# Copies: T4, and the round trip that T10 is held against


def copy_table(sides: list[Side], options) -> list[str]:
    """The time of one request beside the time of one copy, alternating, nerite only."""
    ours = sides[0]
    lines = ["| identity by shm, c1 | request p50 µs | memcpy p50 µs | request − 1.15 × memcpy µs (target ≤ 100) |",
             "|---|--:|--:|--:|"]
    for size in ("4M", "64M"):
        for protocol in ("grpc", "http"):
            pairs = []
            for _ in range(options.runs):
                copy = bench("memcpy", f"--bytes={size}")[0]["p50_us"]
                pairs.append((measure_cell(ours, (protocol, "shm", size, "1"), options)["p50_us"], copy))
            request, copy = (statistics.median(column) for column in zip(*pairs))
            beyond = statistics.median(one - 1.15 * other for one, other in pairs)
            lines.append(f"| {protocol}, {size} B | {request:,.0f} | {copy:,.0f} | {beyond:,.0f} |")
    trips = [bench("pingpong")[0]["p50_us"] for _ in range(options.runs)]
    lines += ["", f"Round trip of 64 bytes over a Unix socket between two processes: p50 {statistics.median(trips):.1f} µs."]
    return lines


# ---------------------------------------------------------------------------------------------------------------------
# A small network: T6, as far as the peer's Python backend lets it be compared

DIGITS = ("--model=digits", "--input=image", "--output=probabilities", "--output-bytes=40", "--batch")


def network_table(sides: list[Side], options) -> list[str]:
    if not importlib.util.find_spec("onnxruntime"):
        return ["pending: this Python has no onnxruntime for the peer's model"]
    ours, theirs = (side.name for side in sides)
    lines = [f"| digit net by shm | p50 µs {ours} | {theirs} (onnxruntime in Python) | ratio "
             f"| server CPU µs {ours} | {theirs} | ratio |", "|---|--:|--:|--:|--:|--:|--:|"]
    for concurrency in options.concurrency.split(","):
        for protocol in ("grpc", "http"):
            cell = (protocol, "shm", "256", concurrency)
            found = [[measure_cell(side, cell, options, *DIGITS) for side in sides] for _ in range(options.runs)]
            columns = []
            for key in ("p50_us", "server_cpu_us"):
                pair = [median([run[at] for run in found], key) for at in range(len(sides))]
                columns += [f"{value:,.0f}" for value in pair] + [ratio(*pair)]
            lines.append(f"| {'gRPC' if protocol == 'grpc' else 'HTTP'}, c{concurrency} | {' | '.join(columns)} |")
    return lines


# ---------------------------------------------------------------------------------------------------------------------
# Growth: T11, as far as regions go


def growth_table(sides: list[Side], options) -> list[str]:
    """What a request costs among few and many registered regions."""
    lines = ["| HTTP shm, 64 B, c1 | regions | p50 µs | server CPU µs | CPU against 1 region (target 0.9–1.1) |",
             "|---|--:|--:|--:|--:|"]
    for side in sides:
        found: dict = {}
        for _ in range(options.runs):
            for count in REGIONS:
                cell = measure_cell(side, ("http", "shm", "64", "1"), options, f"--regions={count}")
                found.setdefault(count, []).append(cell)
        first = median(found[REGIONS[0]], "server_cpu_us")
        for count, cells_found in found.items():
            cpu = median(cells_found, "server_cpu_us")
            lines.append(f"| {side.name} | {count:,} | {median(cells_found, 'p50_us'):.0f} | {cpu:.1f} | {ratio(cpu, first)} |")
    return lines


# ---------------------------------------------------------------------------------------------------------------------
# Start, memory, size: T7, T8, T9


def time_start(side: Side, model: str, scratch: pathlib.Path) -> float:
    """Milliseconds from the start of the process to the first yes to /v2/health/ready."""
    http_port, grpc_port, metrics_port = servers.free_ports(3)
    ports = [f"--http-port={http_port}", f"--grpc-port={grpc_port}", f"--metrics-port={metrics_port}"]
    flags = ["--model-control-mode=explicit", f"--load-model={model}"]
    with (scratch / "start.log").open("wb") as log:
        begin = time.monotonic()
        process = subprocess.Popen([*side.command, *ports, *flags], env=side.environment, stdout=log, stderr=log)
        try:
            wait_ready(f"127.0.0.1:{http_port}")
            return (time.monotonic() - begin) * 1000
        finally:
            process.terminate()
            process.wait()


def start_table(sides: list[Side], scratch: pathlib.Path) -> list[str]:
    lines = [f"| start to ready with one model | ms, median of {STARTS} |", "|---|--:|"]
    models = ["identity_fp32"] + ["digits"] * bool(importlib.util.find_spec("onnxruntime"))
    for side in sides:
        for model in models:
            times = [time_start(side, model, scratch) for _ in range(STARTS)]
            lines.append(f"| {side.name}, {model} | {statistics.median(times):.0f} |")
    return lines


def resident_mib(pid: int) -> float:
    """Resident memory of a process and its descendants, in MiB."""
    parents = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rsplit(")", 1)[1].split()
            parents[int(stat.parent.name)] = int(fields[1])
    family = {pid}
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    total = 0
    for member in family:
        with contextlib.suppress(OSError):
            status = pathlib.Path(f"/proc/{member}/status").read_text()
            total += int(re.search(r"^VmRSS:\s+(\d+)", status, re.MULTILINE).group(1))
    return total / 1024


def memory_table(sides: list[Side], scratch: pathlib.Path, options) -> list[str]:
    """Resident memory of fresh servers, right after payloads, and when they have had time to give it back."""
    lines = [f"| resident MiB | idle | after payloads | {SETTLE_S} s later |", "|---|--:|--:|--:|"]
    with running(sides, scratch):
        for side in sides:
            time.sleep(1)
            row = [resident_mib(side.server.pid)]
            for size in options.bytes.split(","):
                for placement in ("inline", "shm"):
                    for protocol in ("grpc", "http"):
                        measure_cell(side, (protocol, placement, size, "4"), options)
            row.append(resident_mib(side.server.pid))
            time.sleep(SETTLE_S)
            row.append(resident_mib(side.server.pid))
            lines.append(f"| {side.name} | {' | '.join(f'{value:,.0f}' for value in row)} |")
    return lines


def size_table(sides: list[Side]) -> list[str]:
    lines = ["| binary | MB |", "|---|--:|"]
    for side in sides:
        lines.append(f"| {side.name} | {pathlib.Path(side.command[0]).stat().st_size / 1e6:.1f} |")
    return lines


# ---------------------------------------------------------------------------------------------------------------------


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"sections, of {','.join(SECTIONS)}", default=",".join(SECTIONS))
    parser.add_argument("--bytes", help="tensor sizes", default="64,4K,256K,4M,64M")
    parser.add_argument("--concurrency", help="requests under way", default="1,16")
    parser.add_argument("--seconds", type=float, help="length of one measurement", default=3)
    parser.add_argument("--runs", type=int, help="repetitions, for medians", default=3)
    parser.add_argument("--peer-backends", type=pathlib.Path, help="folder with the peer's compiled identity backend")
    parser.add_argument("--quick", action="store_true", help="one short run over fewer sizes")
    options = parser.parse_args()
    if options.quick:
        options.bytes, options.seconds, options.runs = "64,256K,4M", 1, 1
    return options


def main() -> None:
    options = read_options()
    wanted = options.only.split(",")
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        sides = make_sides(scratch, options.peer_backends)
        print(f"nerite ({sides[0].model}) beside {sides[1].name} ({sides[1].model}); {os.cpu_count()} cores shared with "
              f"the load generator, medians of {options.runs} run(s) of {options.seconds:g} s, load average "
              f"{os.getloadavg()[0]:.1f} before.")
        print("Ratios are nerite / Triton: below 1 is better for times and CPU, above 1 for infer/s.\n")

        def show(title: str, make) -> None:
            note(title)
            print(f"### {title}\n\n" + "\n".join(make()) + "\n", flush=True)

        if "size" in wanted:
            show("Size", lambda: size_table(sides))
        if "start" in wanted:
            show("Start", lambda: start_table(sides, scratch))
        if {"load", "copy", "growth", "network"} & set(wanted):
            with running(sides, scratch):
                if "load" in wanted:
                    show("Load", lambda: load_table(sides, options))
                if "copy" in wanted:
                    show("Copies", lambda: copy_table(sides, options))
                if "network" in wanted:
                    show("A small network", lambda: network_table(sides, options))
                if "growth" in wanted:
                    show("Growth", lambda: growth_table(sides, options))
        if "memory" in wanted:
            show("Memory", lambda: memory_table(sides, scratch, options))


if __name__ == "__main__":
    main()
