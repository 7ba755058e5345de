#!/usr/bin/env python3
"""How does nerite compare with the real Triton, in the same run on the same machine?

    cargo build --release -p nerite-server -p nerite-bench
    python benches/compare.py                        # about 19 minutes; --quick for 5
    python benches/compare.py --only load --bytes 64,4M --concurrency 1
    python benches/compare.py --only load --baseline DIR/nerite   # what did a change cost? DIR has the build before it

Both servers run side by side, and `nerite-bench` measures one cell on one, then the same cell on the other, then the
next; the whole is repeated, and the table shows medians. What is not measured stands idle beside it. Without --bytes
and --concurrency the cells are those that a promise of docs/promises.md is about, and each says whether it was kept.

The peer comes from the PyPI wheel that `cargo xtask oracle` installs, whose only backend is the Python one. So that a server is compared with a server, its identity is compiled here
from peer/identity.c; with --peer-backends DIR, a folder with `identity/libtriton_identity.so`, that one is taken;
without a C compiler it is a Python model. Prints Markdown.
"""

import argparse
import os
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), *(str(HERE.parent / "tests" / part) for part in ("conformance", "models"))]

from comparison.batch import batch_table  # noqa: E402
from comparison.cells import CONCURRENCY, SIZES, cells, target_of  # noqa: E402
from comparison.growth import connections_table, growth_table, models_table, requests_table  # noqa: E402
from comparison.load import load_table, python_table  # noqa: E402
from comparison.memory import memory_table, size_table  # noqa: E402
from comparison.network import network_table  # noqa: E402
from comparison.pipelines import ensemble_table  # noqa: E402
from comparison.python_calls import calls_table  # noqa: E402
from comparison.report import note  # noqa: E402
from comparison.round_trip import trip_lines  # noqa: E402
from comparison.sequences import sequences_table  # noqa: E402
from comparison.sides import make_sides, running  # noqa: E402
from comparison.start import start_table  # noqa: E402

SECTIONS = ("load", "python", "trip", "growth", "connections", "models", "network", "batch", "sequences", "ensemble", "start", "memory", "size")


def main() -> None:
    options = read_options()
    wanted = options.only.split(",")
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        sides = make_sides(scratch, options.peer_backends, options.baseline)
        print(f"nerite ({sides[0].model}) beside {sides[1].name} ({sides[1].model}); medians of {options.runs} run(s) "
              f"of {options.seconds:g} s.\n{machine_state()}.")
        print(f"Ratios are nerite / {sides[1].name}: below 1 is better for times and CPU, above 1 for infer/s.\n")

        # What is promised, is promised beside Triton.
        aim = (lambda _: None) if options.baseline else target_of

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
                    show("Load", lambda: load_table(sides, cells(options), aim, options))
                if "network" in wanted:
                    show("A small network", lambda: network_table(sides, options))
                if "growth" in wanted:
                    show("Growth", lambda: growth_table(sides, options))
                    show("Many requests", lambda: requests_table(sides[0], options))
        if "python" in wanted:
            show("A Python model by shm", lambda: python_table(sides, scratch, options))
            show("Python models that ask and that stream", lambda: calls_table(sides, scratch, options))
        if "batch" in wanted:
            show("Dynamic batching", lambda: batch_table(sides, scratch, options))
        if "sequences" in wanted:
            show("Sequences", lambda: sequences_table(sides, scratch, options))
        if "ensemble" in wanted:
            show("An ensemble of three steps", lambda: ensemble_table(sides, scratch, options))
        if "connections" in wanted:
            show("Many connections", lambda: connections_table(sides[0], scratch, options))
        if "models" in wanted:
            show("Many models", lambda: models_table(sides, scratch, options))
        if "memory" in wanted:
            show("Memory", lambda: memory_table(sides, scratch, options))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"sections, of {','.join(SECTIONS)}", default=",".join(SECTIONS))
    parser.add_argument("--bytes", type=parts, help=f"tensor sizes (default: {','.join(SIZES)}, where promised)")
    parser.add_argument("--concurrency", type=parts, help=f"requests under way (default: {','.join(CONCURRENCY)})")
    parser.add_argument("--seconds", type=float, help="length of one measurement", default=2)
    parser.add_argument("--runs", type=int, help="repetitions, for medians", default=3)
    parser.add_argument("--peer-backends", type=pathlib.Path, help="folder with the peer's compiled identity")
    parser.add_argument("--baseline", type=pathlib.Path, help="an earlier build of nerite, compared with in place of Triton")
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


if __name__ == "__main__":
    main()
