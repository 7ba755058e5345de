#!/usr/bin/env python3
"""How does nerite compare with the real Triton, in the same run on the same machine?

    cargo xtask peer                                 # installs and builds what is needed, and measures all rows
    cargo xtask peer L1 T7                           # some rows, printed
    .venv/bin/python benches/peer.py L1 --bytes 64,4K,256K --concurrency 1
    .venv/bin/python benches/peer.py L1 L3 --baseline DIR/nerite   # what did a change cost? DIR has the build before it

A row is measured on one server, then on the other, then again in the opposite order (A B B A), while what is not measured stands idle beside it. Tables
have medians, and each line says whether its target was met. Without names of rows, the page and its pictures are written to docs/results.

The peer comes from the PyPI wheel that tests/setup_oracle.py installs, whose only backend is the Python one. So that a server is compared with a
server, its identity is compiled here from peer/identity.c. With --peer-backends DIR, a folder of compiled backends such as
`identity/libtriton_identity.so` and `onnxruntime/libtriton_onnxruntime.so`, those are taken.
"""

import argparse
import datetime
import os
import pathlib
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), *(str(ROOT / "tests" / part) for part in ("conformance", "models"))]
os.environ.setdefault("NERITE_BIN", str(ROOT / "target" / "release" / "nerite"))

from comparison import page  # noqa: E402
from comparison.report import note  # noqa: E402
from comparison.rows import ROWS, Row, chosen  # noqa: E402
from comparison.sides import Run, make_sides  # noqa: E402

RESULTS, PICTURES = ROOT / "docs" / "results", ROOT / "docs" / "pictures"


def main() -> int:
    options = read_options()
    before, others = page.load_averages(), page.busy_share() if options.out else 0
    with tempfile.TemporaryDirectory() as folder:
        run = Run(options, pathlib.Path(folder), make_sides(pathlib.Path(folder), options.peer_backends, options.baseline))
        results: page.Results = []
        for row in options.rows:
            results.append((row, measured(run, row)))
            print(page.section(*results[-1], run.names), flush=True)
        if options.out:
            write(run, results, page.Load(before, page.load_averages(), others), options.out)
    return 1 if any(isinstance(found, str) for _, found in results) else 0


def measured(run: Run, row: Row):
    """The tables of a row, or why it failed: the other rows are worth having."""
    note(f"{row.name}: {row.title}")
    begin = time.monotonic()
    try:
        return row.measure(run)
    except Exception as failure:  # noqa: BLE001 - printed, and in the exit status
        traceback.print_exc()
        return f"{type(failure).__name__}: {failure}".splitlines()[0]
    finally:
        note(f"{row.name}: {time.monotonic() - begin:.0f} s")


def write(run: Run, results: page.Results, load: page.Load, out: pathlib.Path) -> None:
    # Drawing is imported late: it takes a second, which a single row does not need.
    from comparison.latency import drawing
    from comparison.plots import draw

    out.mkdir(parents=True, exist_ok=True)
    day = datetime.date.today()
    drawn = draw(results, run.names, out, str(day))
    pictures = "\n\n".join(f"![{what}]({name})" for name, what in drawn.items())
    parts = [page.head(run, load, day, run.options.command), pictures + "\n" * bool(pictures)]
    parts += [page.section(row, found, run.names) for row, found in results]
    (out / f"{day}.md").write_text("\n".join(filter(None, parts)))
    if out == RESULTS:
        if latency := drawing((out / f"{day}.md").read_text()):
            (PICTURES / "latency.svg").write_text(latency)
        page.SUMMARY.write_text(page.with_page(page.SUMMARY.read_text(), day))
    note(f"written: {out / f'{day}.md'}")


def read_options() -> argparse.Namespace:
    table = "\n".join(f"  {row.name:7} {row.title}" for row in ROWS)
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=f"rows:\n{table}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help="rows to measure (default: all)")
    parser.add_argument("--bytes", type=parts, help="tensor sizes, in the place of a row's own")
    parser.add_argument("--concurrency", type=parts, help="requests under way, in the place of a row's own")
    parser.add_argument("--seconds", type=float, help="length of one measurement", default=1)
    parser.add_argument("--runs", type=int, help="how often A B B A is repeated", default=1)
    parser.add_argument("--peer-backends", type=pathlib.Path, help="folder with compiled backends of the peer")
    parser.add_argument("--baseline", type=pathlib.Path, help="an earlier build of nerite, compared with in place of Triton")
    parser.add_argument("--quick", action="store_true", help="short measurements over fewer sizes")
    parser.add_argument("--out", type=pathlib.Path, help="folder of the page (default: docs/results if all rows are measured beside Triton)")
    options = parser.parse_args()
    if options.quick:
        options.seconds = 0.3
    options.command = " ".join(["cargo xtask peer", *sys.argv[1:]])
    is_whole = not (options.rows or options.baseline or options.quick or options.bytes or options.concurrency)
    try:
        options.rows = chosen(options.rows)
    except ValueError as reason:
        parser.error(str(reason))
    if options.out or is_whole:
        options.out = (options.out or RESULTS).resolve()
    return options


def parts(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


if __name__ == "__main__":
    sys.exit(main())
