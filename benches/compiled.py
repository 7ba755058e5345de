#!/usr/bin/env python3
"""What does a request through the C interface of compiled backends cost, beside the same in the server itself?

    cargo build --release -p nerite-server -p nerite-bench
    .venv/bin/python benches/compiled.py                    # two minutes; NERITE_BIN and NERITE_BENCH_BIN name other binaries

One server has two identity models: one of the built-in backend, one of peer/identity.c. They are asked by turns, so that both sides of a pair meet
the same machine. What counts is the processor time of the server (user and system) for a request. A compiled backend tells nothing of how long its
runs take, so its requests go to a worker, which has to be woken. Two ways show what the interface alone costs: with --bounded the compiled model says
that its runs are bounded (nerite.cost_bound), with --apart the built-in one's requests go to a worker as well.
Ends with 1 if the interface costs more than --most microseconds in any row.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / "tests" / "conformance"), str(ROOT / "tests" / "models")]

import servers  # noqa: E402

CELLS = [(protocol, placement, clients) for protocol in ("http", "grpc") for placement in ("inline", "shm") for clients in (1, 16)]
CONFIG = """\
backend: "{backend}"
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
instance_group [ {{ count: {instances} kind: KIND_CPU {more} }} ]
"""
BUILT_IN, COMPILED = "built_in", "compiled"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=1, help="of each side of a pair")
    options.add_argument("--pairs", type=int, default=5)
    options.add_argument("--most", type=float, default=2, help="microseconds that the interface may cost")
    options.add_argument("--apart", action="store_true", help="the built-in backend's requests go to a worker as well")
    options.add_argument("--bounded", action="store_true", help="the compiled backend's requests need no worker either")
    options = options.parse_args()
    print(f"medians of {options.pairs} pairs of {options.seconds:g} s; load average {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores\n")
    print("| request of 64 B, clients | CPU us built in | compiled | more | ratio | p50 us built in | compiled | |")
    print("|---|--:|--:|--:|--:|--:|--:|---|")
    with tempfile.TemporaryDirectory() as folder, serving(pathlib.Path(folder), options) as server:
        kept = [measure(server, cell, options) for cell in CELLS]
    return 0 if all(kept) else 1


def measure(server, cell: tuple[str, str, int], options) -> bool:
    sides: dict[str, list[dict]] = {BUILT_IN: [], COMPILED: []}
    for pair in range(options.pairs):
        for model in list(sides) if pair % 2 == 0 else reversed(list(sides)):
            sides[model].append(bench(server, model, cell, options.seconds))
    median = lambda model, key: statistics.median(one[key] for one in sides[model])
    cpu = [median(model, "server_cpu_us") for model in sides]
    more = statistics.median(
        theirs["server_cpu_us"] - ours["server_cpu_us"] for ours, theirs in zip(sides[BUILT_IN], sides[COMPILED], strict=True)
    )
    p50 = [median(model, "p50_us") for model in sides]
    protocol, placement, clients = cell
    print(
        f"| {protocol} {placement}, {clients} | {cpu[0]:.1f} | {cpu[1]:.1f} | {more:+.1f} | {cpu[1] / cpu[0]:.2f} | {p50[0]:.1f} | {p50[1]:.1f} "
        f"| {'met' if more <= options.most else f'**missed: at most {options.most:g}**'} |",
        flush=True,
    )
    return more <= options.most


def bench(server, model: str, cell: tuple[str, str, int], seconds: float) -> dict:
    protocol, placement, clients = cell
    program = os.environ.get("NERITE_BENCH_BIN", str(ROOT / "target" / "release" / "nerite-bench"))
    address = server.http if protocol == "http" else server.grpc
    arguments = [f"--{protocol}={address}", f"--model={model}", f"--placement={placement}", "--bytes=64", f"--concurrency={clients}",
                 f"--seconds={seconds}", f"--warm-up={seconds / 4}", f"--pids={server.pid}", "--json"]  # fmt: skip
    done = subprocess.run([program, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[0])


@contextlib.contextmanager
def serving(folder: pathlib.Path, options):
    library = folder / "backends" / "peer" / "libtriton_peer.so"
    library.parent.mkdir(parents=True)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(HERE / "peer" / "identity.c")], check=True)
    # Instances that are bound to all cores run on workers.
    policy = 'host_policy: "everywhere"' if options.apart else ""
    bound = 'parameters { key: "nerite.cost_bound" value { string_value: "input_sizes" } }\n' if options.bounded else ""
    for model, backend, more, last in ((BUILT_IN, "identity", policy, ""), (COMPILED, "peer", "", bound)):
        (folder / "models" / model / "1").mkdir(parents=True)
        config = CONFIG.format(backend=backend, instances=len(os.sched_getaffinity(0)), more=more) + last
        (folder / "models" / model / "config.pbtxt").write_text(config)
    command, environment = servers.nerite_command(folder / "models")
    cores = sorted(os.sched_getaffinity(0))
    flags = [f"--backend-directory={folder / 'backends'}", f"--host-policy=everywhere,cpu-cores={cores[0]}-{cores[-1]}"]
    server = servers.start(command, environment, flags, folder / "log")
    try:
        yield server
    finally:
        servers.stop(server)


if __name__ == "__main__":
    sys.exit(main())
