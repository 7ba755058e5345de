#!/usr/bin/env python3
"""How does nerite compare with the real Triton, in the same run on the same machine?

    cargo build --release -p nerite-server -p nerite-bench
    python benches/compare.py                        # about 17 minutes; --quick for 4
    python benches/compare.py --only load --bytes 64,4M --concurrency 1

Both servers run side by side, and `nerite-bench` measures one cell on one, then the same cell on the other, then the
next; the whole is repeated, and the table shows medians. What is not measured stands idle beside it. Without --bytes
and --concurrency the cells are those that a promise of docs/promises.md is about, and each says whether it was kept.

The peer comes from the PyPI wheel that tests/conformance/triton.py names (TRITON_ORACLE: the environment that holds
it), whose only backend is the Python one. So that a server is compared with a server, its identity is compiled here
from peer/identity.c; with --peer-backends DIR, a folder with `identity/libtriton_identity.so`, that one is taken;
without a C compiler it is a Python model. Prints Markdown.
"""

import argparse
import contextlib
import dataclasses
import http.client
import importlib.util
import json
import math
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

SECTIONS = ("load", "python", "trip", "growth", "models", "network", "start", "memory", "size")
SIZES = ("64", "4K", "256K", "4M", "64M")
CONCURRENCY = ("1", "16")
READY_LIMIT_S = 60
SETTLE_S = 5
STARTS = 5
REGIONS = (1, 100, 10_000)
MODELS = (1, 500)
REQUESTS = 1_000_000

PYTHON_IDENTITY = "identity in Python"
ECHO_MODEL = (ROOT / "benches" / "peer" / "identity.py").read_text()


@dataclasses.dataclass
class Side:
    """One of the two servers: what it is called in the tables, and how it is started over its repository."""

    name: str
    model: str
    command: list[str]
    environment: dict[str, str]
    repository: pathlib.Path
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


def compile_identity(out: pathlib.Path) -> bool:
    """The peer's identity backend, where the server looks for it in its backend folder `out`; whether there is one now.
    No library is linked: its functions are found in the libtritonserver that the running server has loaded."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return False
    library = out / "identity" / "libtriton_identity.so"
    library.parent.mkdir(parents=True)
    source = ROOT / "benches" / "peer" / "identity.c"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return True


def put_peer_backend(backends: pathlib.Path, given: pathlib.Path | None) -> str:
    """Brings the peer's identity into its backend folder, and says in a few words what it is."""
    if given:
        shutil.copytree(given / "identity", backends / "identity")
        return f"identity of {given}"
    if compile_identity(backends):
        return "identity in C, benches/peer/identity.c"
    note("no gcc or cc found: the peer's identity is a Python model, and slower than the server is")
    return PYTHON_IDENTITY


def make_sides(scratch: pathlib.Path, peer_backends: pathlib.Path | None) -> list[Side]:
    ours, theirs = scratch / "nerite", scratch / "peer"
    write_identity(ours, "identity")
    peer_model = put_peer_backend(scratch / "backends", peer_backends)
    write_identity(theirs, "python" if peer_model == PYTHON_IDENTITY else "identity")
    if importlib.util.find_spec("onnxruntime"):
        write_digits(ours, "onnx")
        write_digits(theirs, "python")
    return [
        Side("nerite", "identity, built in", *servers.nerite_command(ours), ours),
        Side("Triton 2.51", peer_model, *triton.command(theirs, scratch), theirs),
    ]


@contextlib.contextmanager
def running(sides: list[Side], scratch: pathlib.Path):
    """Both servers up and ready, both down afterwards."""
    try:
        for side in sides:
            log = scratch / f"{side.command[0].rsplit('/', 1)[-1]}.log"
            side.server = servers.start(side.command, side.environment, [], log)
            wait_ready(side.server.http)
            check_identity(side)
        yield
    finally:
        for side in sides:
            if side.server is not None:
                servers.stop(side.server)
                side.server = None


def check_identity(side: Side) -> None:
    """A server that answers fast but wrongly is not worth measuring."""
    sent = os.urandom(4096)
    given = {"name": "INPUT0", "datatype": "FP32", "shape": [1024], "parameters": {"binary_data_size": len(sent)}}
    head = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    connection = http.client.HTTPConnection(side.server.http, timeout=READY_LIMIT_S)
    with contextlib.closing(connection):
        length = {"Inference-Header-Content-Length": str(len(head))}
        connection.request("POST", "/v2/models/identity_fp32/infer", head + sent, length)
        answer = connection.getresponse().read()
    if not answer.endswith(sent):
        raise RuntimeError(f"{side.name} answers {answer[:400]!r} and not the bytes it was sent")


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
# Load: T1 to T4

# A cell is protocol, placement, bytes, concurrency.
Cell = tuple[str, str, str, str]


@dataclasses.dataclass
class Target:
    """What is promised of a cell: at most so much of the peer's CPU and p50, at least so much of its infer/s."""

    name: str
    cpu_max: float | None = None
    p50_max: float | None = None
    rate_min: float | None = None
    # p50 is held against 1.15 times a copy of as many bytes, and this much more, rather than against the peer.
    over_copy_us: float | None = None


def target_of(cell: Cell) -> Target | None:
    _, placement, size, concurrency = cell
    large = byte_count(size) >= 4 << 20
    if placement == "shm" and byte_count(size) <= 256 << 10:
        return Target(
            "T1", cpu_max=1 / 3, p50_max=2 / 3 if concurrency == "1" else None,
            rate_min=1.4 if concurrency == "16" else None,
        )
    if placement == "inline" and byte_count(size) <= 4 << 10:
        return Target("T2", cpu_max=1 / 2)
    if placement == "inline" and large and concurrency == "1":
        return Target("T3", cpu_max=1 / 2)
    if placement == "shm" and large and concurrency == "1":
        return Target("T4", over_copy_us=100)
    return None


def byte_count(size: str) -> int:
    return int(size.rstrip("KM")) << {"K": 10, "M": 20}.get(size[-1], 0)


def cells(options) -> list[Cell]:
    """Those with a target, by target; all combinations when sizes or concurrencies were asked for."""
    every = [
        (protocol, placement, size, concurrency)
        for placement in ("shm", "inline")
        for size in options.bytes or SIZES
        for concurrency in options.concurrency or CONCURRENCY
        for protocol in ("grpc", "http")
    ]
    if options.chosen:
        return every
    aimed = [(target.name, cell) for cell in every if (target := target_of(cell))]
    return [cell for _, cell in sorted(aimed, key=lambda pair: pair[0])]


def measure_cell(side: Side, cell: Cell, options, *more: str) -> dict:
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


def judge(target: Target | None, ratios: dict[str, float], p50_us: float, copy_us: float | None) -> tuple[str, str]:
    """What is promised, and whether it was kept: two columns of the table."""
    if target is None:
        return "–", "–"
    rules = []
    if target.cpu_max is not None:
        rules.append((f"CPU ≤ {target.cpu_max:.2f}", ratios["server_cpu_us"] <= target.cpu_max))
    if target.p50_max is not None:
        rules.append((f"p50 ≤ {target.p50_max:.2f}", ratios["p50_us"] <= target.p50_max))
    if target.rate_min is not None:
        rules.append((f"infer/s ≥ {target.rate_min:.2f}", ratios["per_second"] >= target.rate_min))
    if target.over_copy_us is not None and copy_us is not None:
        limit_us = 1.15 * copy_us + target.over_copy_us
        rules.append((f"p50 ≤ {limit_us:,.0f} µs, memcpy {copy_us:,.0f}", p50_us <= limit_us))
    missed = [rule.split()[0] for rule, kept in rules if not kept]
    promise = f"{target.name}: {', '.join(rule for rule, _ in rules)}"
    return promise, f"**missed: {', '.join(missed)}**" if missed else "met"


def measure_grid(sides: list[Side], grid: list[Cell], aim, options) -> tuple[dict, dict]:
    """Results by cell and side, and the time of a copy by cell, taken beside the cells that are held against it; `aim` tells
    a cell's target."""
    found: dict = {}
    copies: dict = {}
    for run in range(options.runs):
        for at, cell in enumerate(grid):
            # Who goes first alternates, so that neither always meets the caches the other left.
            for side in sides if (run + at) % 2 == 0 else reversed(sides):
                found.setdefault((cell, side.name), []).append(measure_cell(side, cell, options))
            target = aim(cell)
            if target and target.over_copy_us is not None:
                copies.setdefault(cell, []).extend(bench("memcpy", f"--bytes={cell[2]}"))
            note(f"  run {run + 1}/{options.runs}, cell {at + 1}/{len(grid)}: {' '.join(cell)}")
    return found, copies


def load_table(sides: list[Side], grid: list[Cell], aim, options) -> list[str]:
    found, copies = measure_grid(sides, grid, aim, options)
    ours, theirs = (side.name for side in sides)
    lines = [
        f"| request | infer/s {ours} | {theirs} | ratio | p50 µs {ours} | {theirs} | ratio "
        f"| server CPU µs {ours} | {theirs} | ratio | target | |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|---|",
    ]
    for cell in grid:
        protocol, placement, size, concurrency = cell
        columns = []
        ratios = {}
        for key, digits in (("per_second", 0), ("p50_us", 0), ("server_cpu_us", 1)):
            pair = [median(found[cell, side.name], key) for side in sides]
            ratios[key] = pair[0] / pair[1] if pair[1] else math.nan
            columns += [f"{value:,.{digits}f}" for value in pair] + [ratio(*pair)]
        copy_us = median(copies[cell], "p50_us") if cell in copies else None
        columns += judge(aim(cell), ratios, median(found[cell, ours], "p50_us"), copy_us)
        name = f"{'gRPC' if protocol == 'grpc' else 'HTTP'} {placement}, {size} B, c{concurrency}"
        lines.append(f"| {name} | {' | '.join(columns)} |")
    return lines


# ---------------------------------------------------------------------------------------------------------------------
# A Python model: T5

PYTHON_SIZES = ("64", "256K", "4M", "64M")


def python_sides(sides: list[Side], scratch: pathlib.Path) -> list[Side]:
    """Both servers over the same identity in Python, in the same interpreter with the same numpy."""
    found = []
    for side in sides:
        repository = scratch / f"python_{side.command[0].rsplit('/', 1)[-1]}"
        if not repository.exists():
            write_identity(repository, "python")
        command = [part.replace(str(side.repository), str(repository)) for part in side.command]
        path = f"{triton.environment_path() / 'bin'}{os.pathsep}{side.environment['PATH']}"
        environment = side.environment | {"PATH": path}
        found.append(Side(side.name, PYTHON_IDENTITY, command, environment, repository))
    return found


def python_target_of(cell: Cell) -> Target | None:
    size = byte_count(cell[2])
    if size <= 64:
        return Target("T5", cpu_max=1 / 2, p50_max=1 / 2)
    return Target("T5", p50_max=1 / 3) if size >= 4 << 20 else None


def python_table(sides: list[Side], scratch: pathlib.Path, options) -> list[str]:
    """CPU is that of the server and its children together."""
    sizes, concurrency = options.bytes or PYTHON_SIZES, options.concurrency or CONCURRENCY
    grid = [(protocol, "shm", size, many) for size in sizes for many in concurrency for protocol in ("grpc", "http")]
    with running(pair := python_sides(sides, scratch), scratch):
        return load_table(pair, grid, python_target_of, options)


# ---------------------------------------------------------------------------------------------------------------------
# The round trip that T10 is held against


def trip_lines(options) -> list[str]:
    trips = [bench("pingpong")[0]["p50_us"] for _ in range(options.runs)]
    return [f"64 bytes over a Unix socket between two processes and back: p50 {statistics.median(trips):.1f} µs."]


# ---------------------------------------------------------------------------------------------------------------------
# A small network: T6, as far as the peer's Python backend lets it be compared

DIGITS = ("--model=digits", "--input=image", "--output=probabilities", "--output-bytes=40", "--batch")


def network_table(sides: list[Side], options) -> list[str]:
    if not importlib.util.find_spec("onnxruntime"):
        return ["pending: this Python has no onnxruntime for the peer's model"]
    ours, theirs = (side.name for side in sides)
    lines = [f"| digit net by shm | p50 µs {ours} | {theirs} (onnxruntime in Python) | ratio "
             f"| server CPU µs {ours} | {theirs} | ratio |", "|---|--:|--:|--:|--:|--:|--:|"]
    for concurrency in options.concurrency or CONCURRENCY:
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
            p50 = median(cells_found, "p50_us")
            lines.append(f"| {side.name} | {count:,} | {p50:.0f} | {cpu:.1f} | {ratio(cpu, first)} |")
    return lines


def models_table(sides: list[Side], scratch: pathlib.Path, options) -> list[str]:
    """What a request costs among few and many loaded models."""
    lines = ["| HTTP shm, 64 B, c1 | models | p50 µs | server CPU µs | CPU against 1 model (target 0.9–1.1) |",
             "|---|--:|--:|--:|--:|"]
    for side in sides:
        first = None
        for count in MODELS:
            repository = scratch / f"{side.name}_{count}".replace(" ", "_")
            for name in ["identity_fp32"] + [f"other_{number}" for number in range(1, count)]:
                shutil.copytree(side.repository / "identity_fp32", repository / name)
                config = repository / name / "config.pbtxt"
                config.write_text(config.read_text().replace('"identity_fp32"', f'"{name}"'))
            command = [part.replace(str(side.repository), str(repository)) for part in side.command]
            crowded = dataclasses.replace(side, command=command)
            with running([crowded], scratch):
                found = [measure_cell(crowded, ("http", "shm", "64", "1"), options) for _ in range(options.runs)]
            cpu, p50 = median(found, "server_cpu_us"), median(found, "p50_us")
            first = first or cpu
            lines.append(f"| {side.name} | {count} | {p50:.0f} | {cpu:.1f} | {ratio(cpu, first)} |")
    return lines


def requests_table(side: Side, options) -> list[str]:
    """What the last of many requests cost against the first, and what they leave in memory."""
    lines = [f"| HTTP shm, 64 B, c16, {side.name} | requests before | server CPU µs | resident MiB |", "|---|--:|--:|--:|"]
    answered = 0
    while True:
        cell = measure_cell(side, ("http", "shm", "64", "16"), options)
        if answered == 0 or answered >= REQUESTS:
            lines.append(f"| | {answered:,} | {cell['server_cpu_us']:.1f} | {resident_mib(side.server.pid):.0f} |")
        if answered >= REQUESTS:
            return lines
        answered += int(cell["per_second"] * options.seconds)


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
    rows = [(side, model, model) for side in sides for model in models]
    rows += [(side, "identity_fp32", PYTHON_IDENTITY) for side in python_sides(sides, scratch)]
    for side, model, name in rows:
        times = [time_start(side, model, scratch) for _ in range(STARTS)]
        lines.append(f"| {side.name}, {name} | {statistics.median(times):.0f} |")
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
            for size in options.bytes or SIZES:
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
    parser.add_argument("--bytes", type=parts, help=f"tensor sizes (default: {','.join(SIZES)}, where promised)")
    parser.add_argument("--concurrency", type=parts, help=f"requests under way (default: {','.join(CONCURRENCY)})")
    parser.add_argument("--seconds", type=float, help="length of one measurement", default=2)
    parser.add_argument("--runs", type=int, help="repetitions, for medians", default=3)
    parser.add_argument("--peer-backends", type=pathlib.Path, help="folder with the peer's compiled identity")
    parser.add_argument("--quick", action="store_true", help="one short run over fewer sizes")
    options = parser.parse_args()
    options.chosen = bool(options.bytes or options.concurrency)
    if options.quick:
        options.seconds, options.runs = 1, 1
        options.bytes = options.bytes or SIZES[:-1]
    return options


def parts(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def machine_state() -> str:
    """What else this machine does: figures of a busy one are noise, their ratios less so."""
    cores = os.cpu_count() or 1
    load = os.getloadavg()
    averages = ", ".join(f"{value:.1f}" for value in load)
    verdict = "**busy: read ratios only**" if load[0] > cores / 4 else "idle"
    return f"{cores} cores, shared with the load generator; load average {averages} over 1, 5, 15 minutes: {verdict}"


def main() -> None:
    options = read_options()
    wanted = options.only.split(",")
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        sides = make_sides(scratch, options.peer_backends)
        print(f"nerite ({sides[0].model}) beside {sides[1].name} ({sides[1].model}); medians of {options.runs} run(s) "
              f"of {options.seconds:g} s.\n{machine_state()}.")
        print("Ratios are nerite / Triton: below 1 is better for times and CPU, above 1 for infer/s.\n")

        def show(title: str, make) -> None:
            note(title)
            print(f"### {title}\n\n" + "\n".join(make()) + "\n", flush=True)

        if "size" in wanted:
            show("Size", lambda: size_table(sides))
        if "trip" in wanted:
            show("Round trip", lambda: trip_lines(options))
        if "start" in wanted:
            show("Start", lambda: start_table(sides, scratch))
        if {"load", "growth", "network"} & set(wanted):
            with running(sides, scratch):
                if "load" in wanted:
                    show("Load", lambda: load_table(sides, cells(options), target_of, options))
                if "network" in wanted:
                    show("A small network", lambda: network_table(sides, options))
                if "growth" in wanted:
                    show("Growth", lambda: growth_table(sides, options))
                    show("Many requests", lambda: requests_table(sides[0], options))
        if "python" in wanted:
            show("A Python model by shm", lambda: python_table(sides, scratch, options))
        if "models" in wanted:
            show("Many models", lambda: models_table(sides, scratch, options))
        if "memory" in wanted:
            show("Memory", lambda: memory_table(sides, scratch, options))


if __name__ == "__main__":
    main()
