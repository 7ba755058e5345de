#!/usr/bin/env python3
"""What does a request through the C interface of compiled backends cost, beside the same in the server itself, or beside Triton?

    cargo build --release -p nerite-server --bin nerite
    .venv/bin/python benches/compiled.py                    # two minutes; NERITE_BIN names another binary
    .venv/bin/python benches/compiled.py --triton           # three minutes

One server has two identity models: one of the built-in backend, one of peer/identity.c. They are asked by turns, so that both sides of a pair meet
the same machine. What counts is the processor time of the server (user and system) for a request. A compiled backend tells nothing of how long its
runs take, so its requests go to a worker, which has to be woken. Two ways show what the interface alone costs: with --bounded the compiled model says
that its runs are bounded (nerite.cost_bound), with --apart the built-in one's requests go to a worker as well.
Ends with 1 if the interface costs more than --most microseconds in any row.

With --triton the same library runs in the real Triton 2.51 as well, which `cargo xtask oracle` installs. It is compared with two
models of this server: one that says that its runs are bounded, and one that does not. Ratios are this server's figure / Triton's: below 1 is better.
"""

import argparse
import contextlib
import dataclasses
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT / "tests" / "conformance"), str(ROOT / "tests" / "models")]

os.environ.setdefault("NERITE_BIN", str(ROOT / "target" / "release" / "nerite"))

import servers  # noqa: E402
import triton  # noqa: E402
from comparison.generator import of_size, run_bench  # noqa: E402
from comparison.report import median, ratio  # noqa: E402
from comparison.sides import check_identity, wait_ready  # noqa: E402

CELLS = [(protocol, placement, clients) for protocol in ("http", "grpc") for placement in ("inline", "shm") for clients in (1, 16)]
CONFIG = """\
backend: "{backend}"
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
instance_group [ {{ count: {instances} kind: KIND_CPU {more} }} ]
"""
BOUND = 'parameters { key: "nerite.cost_bound" value { string_value: "input_sizes" } }\n'


@dataclasses.dataclass
class Side:
    """A model of a server, and its name in the table."""

    name: str
    server: servers.Server
    model: str


def main() -> int:
    options = read_options()
    cores = len(os.sched_getaffinity(0))
    print(f"medians of {options.pairs} rounds of {options.seconds:g} s; load average {os.getloadavg()[0]:.1f} on {cores} cores\n")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as held:
        sides = held.enter_context((beside_triton if options.triton else beside_built_in)(pathlib.Path(folder), options))
        for side in sides:
            wait_ready(side.server.http)
            check_identity(side, side.model)
        print("\n".join(table_head(sides, options)))
        kept = [measure(sides, cell, options) for cell in CELLS]
    return 0 if all(kept) or options.triton else 1


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1, help="of each side in a round")
    parser.add_argument("--pairs", type=int, default=5, help="rounds")
    parser.add_argument("--most", type=float, default=2, help="microseconds that the interface may cost")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--apart", action="store_true", help="the built-in backend's requests go to a worker as well")
    kinds.add_argument("--bounded", action="store_true", help="the compiled backend's requests need no worker either")
    kinds.add_argument("--triton", action="store_true", help="beside the same library in Triton 2.51")
    return parser.parse_args()


def table_head(sides: list[Side], options) -> list[str]:
    """The first side is what the others are compared with."""
    first, *others = [side.name for side in sides]
    columns = ["request of 64 B, clients", f"CPU us {first}", *(f"{name} | more | ratio" for name in others)]
    columns += [f"p50 us {first}", *(f"{name} | ratio" for name in others)]
    line = f"| {' | '.join(columns)} |"
    rule = "|---" + "|--:" * (line.count("|") - 2) + "|"
    # Beside Triton nothing is promised.
    return [line, rule] if options.triton else [f"{line} |", f"{rule}---|"]


def measure(sides: list[Side], cell: tuple[str, str, int], options) -> bool:
    results: list[list[dict]] = [[] for _ in sides]
    for at in range(options.pairs):
        for side, found in list(zip(sides, results, strict=True))[:: 1 if at % 2 == 0 else -1]:
            found.append(measure_once(side, cell, options.seconds))
    first, *others = results
    more = [statistics.median(one["server_cpu_us"] - base["server_cpu_us"] for base, one in zip(first, found, strict=True)) for found in others]
    (cpu, *cpus), (p50, *p50s) = ([median(found, key) for found in results] for key in ("server_cpu_us", "p50_us"))
    protocol, placement, clients = cell
    columns = [f"{protocol} {placement}, {clients}", f"{cpu:.1f}"]
    columns += [f"{one:.1f} | {over:+.1f} | {ratio(one, cpu)}" for one, over in zip(cpus, more, strict=True)]
    columns += [f"{p50:.1f}", *(f"{one:.1f} | {ratio(one, p50)}" for one in p50s)]
    is_kept = max(more) <= options.most
    if not options.triton:
        columns.append("met" if is_kept else f"**missed: at most {options.most:g}**")
    print(f"| {' | '.join(columns)} |", flush=True)
    return is_kept


def measure_once(side: Side, cell: tuple[str, str, int], seconds: float) -> dict:
    protocol, placement, clients = cell
    address = side.server.http if protocol == "http" else side.server.grpc
    cell = (protocol, placement, "64", str(clients))
    return run_bench(address, side.server.pid, cell, seconds, *of_size(cell), model=side.model)


@contextlib.contextmanager
def beside_built_in(folder: pathlib.Path, options):
    # Instances that are bound to all cores run on workers.
    put(folder / "models", "built_in", "identity", more='host_policy: "everywhere"' if options.apart else "")
    put(folder / "models", "compiled", "peer", last=BOUND if options.bounded else "")
    with nerite(folder) as server:
        yield [Side("built in", server, "built_in"), Side("compiled", server, "compiled")]


@contextlib.contextmanager
def beside_triton(folder: pathlib.Path, _):
    put(folder / "models", "compiled", "peer")
    put(folder / "models", "bounded", "peer", last=BOUND)
    put(folder / "triton_models", "compiled", "peer")
    with nerite(folder) as server:
        command, environment = triton.command(folder / "triton_models", folder / "triton")
        library = folder / "triton" / "backends" / "peer" / "libtriton_peer.so"
        library.parent.mkdir()
        shutil.copy(folder / "backends" / "peer" / library.name, library)
        with started(command, environment, [], folder / "triton_log") as peer:
            yield [Side("Triton 2.51", peer, "compiled"), Side("compiled", server, "compiled"), Side("bounded", server, "bounded")]


def put(models: pathlib.Path, name: str, backend: str, more: str = "", last: str = "") -> None:
    (models / name / "1").mkdir(parents=True)
    config = CONFIG.format(backend=backend, instances=len(os.sched_getaffinity(0)), more=more) + last
    (models / name / "config.pbtxt").write_text(config)


@contextlib.contextmanager
def nerite(folder: pathlib.Path):
    library = folder / "backends" / "peer" / "libtriton_peer.so"
    library.parent.mkdir(parents=True)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(HERE / "peer" / "identity.c")], check=True)
    command, environment = servers.nerite_command(folder / "models")
    cores = sorted(os.sched_getaffinity(0))
    flags = [f"--backend-directory={folder / 'backends'}", f"--host-policy=everywhere,cpu-cores={cores[0]}-{cores[-1]}"]
    with started(command, environment, flags, folder / "log") as server:
        yield server


@contextlib.contextmanager
def started(command: list[str], environment: dict[str, str], flags: list[str], log: pathlib.Path):
    server = servers.start(command, environment, flags, log)
    try:
        yield server
    finally:
        servers.stop(server)


if __name__ == "__main__":
    sys.exit(main())
