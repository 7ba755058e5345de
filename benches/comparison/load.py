"""How fast are requests of an identity answered?"""

import contextlib
import mmap
import statistics
import time
from collections.abc import Callable

import numpy as np

from . import analyzer
from .cells import Cell, byte_count, cells, title
from .generator import MODEL, count_calls, measure_cell
from .limit import limit
from .report import LIMIT, PEER, Bound, Table
from .repositories import write_identity
from .sides import Bare, Run, Side, measured, moved, python_sides, running, with_flags

COPY_SHARE, COPY_PLUS_US = 1.15, 100


def small_requests(run: Run) -> list[Table]:
    """L1. The limit answers with the same bytes."""
    table = Table("identity by system shared memory, nerite bench")
    bounds = run.targets(Bound("server_cpu_us", most=1.6, of=LIMIT), Bound("server_cpu_us", most=0.2, of=PEER))
    with running(run.pair, run.scratch):
        small_lines(run, run.pair, table, "shm", bounds)
    return [table]


def small_inline(run: Run) -> list[Table]:
    """The same with the tensors in the messages."""
    table = Table("identity, inline, nerite bench")
    bounds = run.targets(Bound("server_cpu_us", most=0.5, of=PEER))
    with running(run.pair, run.scratch):
        small_lines(run, run.pair, table, "inline", bounds)
    return [table]


def unix_sockets(run: Run) -> list[Table]:
    """L2. Triton has no such sockets, an earlier build of nerite may have them."""
    remark = "" if run.options.baseline else "Triton 2.51 has no Unix sockets."
    table = Table("identity by system shared memory, over Unix sockets, nerite bench", remark=remark)
    sides = []
    for side in run.pair if run.options.baseline else [run.ours]:
        other = moved(side, run.scratch, "unix")
        write_identity(other.repository, other.identity_backend)
        other = with_flags(other, *(f"--{protocol}-socket={other.repository}.{protocol}" for protocol in ("http", "grpc")))
        other.sockets = {protocol: other.repository.with_name(f"{other.repository.name}.{protocol}") for protocol in ("http", "grpc")}
        sides.append(other)
    with running(sides, run.scratch):
        small_lines(run, sides, table, "shm", run.targets(Bound("server_cpu_us", most=1.6, of=LIMIT)), in_socket=True)
    return [table]


def small_lines(run: Run, sides: list[Side], table: Table, placement: str, bounds: tuple[Bound, ...], in_socket: bool = False) -> None:
    """Lines that have system calls and the limit as well."""
    for cell in cells(run.options, placement, ("64",)):
        protocol, _, size, _ = cell
        with limit(sides[-1], run.scratch, protocol, placement, size, in_socket) as least:
            everyone = [*sides, *([least] if least else [])]
            found = measured(everyone, run.options, lambda side, cell=cell: measure_cell(side, cell, run.options.seconds))
            for side in everyone:
                found[side.role] |= count_calls(side, cell, run.options.seconds / 2)
        table.add(title(cell), found, *bounds)


def by_perf_analyzer(run: Run) -> list[Table]:
    """T2."""
    if not analyzer.is_installed():
        return [Table("identity under perf_analyzer", remark="no perf_analyzer: python tests/perf_analyzer/setup_perf.py")]
    table = Table("identity under perf_analyzer")
    bounds = run.targets(
        Bound("per_second", least=1.4, of=PEER), Bound("p50_us", most=2 / 3, of=PEER), Bound("server_cpu_us", most=0.5, of=PEER)
    )
    sizes = ("64",) if run.options.quick else ("64", "256K")
    with running(run.pair, run.scratch):
        for cell in [*cells(run.options, "inline", sizes), *cells(run.options, "shm", sizes)]:
            protocol, placement, size, concurrency = cell
            words = [f"--shape=INPUT0:{byte_count(size) // 4}"]
            if placement == "shm":
                words += ["--shared-memory=system", f"--output-shared-memory-size={byte_count(size)}"]
            found = measured(
                run.pair, run.options,
                lambda side, words=words: analyzer.analyze(side, protocol, MODEL, concurrency, run.options, *words),
            )  # fmt: skip
            table.add(title(cell), found, *bounds)
    return [table]


def large_inline(run: Run) -> list[Table]:
    """L3. The limit receives the request into warm memory and copies the tensor once."""
    table = Table("identity, inline", remark="The limit is measured over HTTP.")
    bounds = run.targets(Bound("server_cpu_us", most=1.25, of=LIMIT), Bound("wake_ups", most=4))
    with running(run.pair, run.scratch):
        for cell in cells(run.options, "inline", ("4M",) if run.options.quick else ("4M", "64M"), ("1",)):
            protocol, placement, size, _ = cell
            held = limit(run.ours, run.scratch, protocol, placement, size) if protocol == "http" else contextlib.nullcontext()
            with held as least:
                sides = [*run.pair, *([least] if least else [])]
                found = measured(sides, run.options, lambda side, cell=cell: measure_cell(side, cell, run.options.seconds))
            table.add(title(cell), found, *bounds)
    return [table]


def middle_shm(run: Run) -> list[Table]:
    """L4."""
    return load_table(run, run.pair, "identity", cells(run.options, "shm", ("256K",), ("16",)),
                      lambda _: (Bound("per_second", least=1.4, of=PEER),))  # fmt: skip


def large_shm(run: Run) -> list[Table]:
    """T4. The limit is one copy between two regions, by one thread."""
    table = Table("identity by system shared memory; limit: one memcpy")
    bounds = run.targets(Bound("p50_us", most=COPY_SHARE, of=LIMIT, plus=COPY_PLUS_US))
    with running(run.pair, run.scratch):
        for cell in cells(run.options, "shm", ("4M",) if run.options.quick else ("4M", "64M"), ("1",)):
            copy = Bare(lambda cell=cell: memcpy(byte_count(cell[2]), run.options.seconds))
            found = measured([*run.pair, copy], run.options, lambda side, cell=cell: measure_cell(side, cell, run.options.seconds))
            table.add(title(cell), found, *bounds)
    return [table]


def memcpy(size: int, seconds: float) -> dict[str, float]:
    """The time of a copy between two regions, both touched before."""
    times, end = [], time.monotonic() + seconds
    with mmap.mmap(-1, size) as given, mmap.mmap(-1, size) as taken:
        source, target = np.frombuffer(given, np.uint8), np.frombuffer(taken, np.uint8)
        source.fill(1)
        target.fill(0)
        while not times or time.monotonic() < end:
            begin = time.perf_counter_ns()
            np.copyto(target, source)
            times.append(time.perf_counter_ns() - begin)
        del source, target
    return {"p50_us": statistics.median(times) / 1000}


def python_identity(run: Run) -> list[Table]:
    """T5. CPU and wake-ups are those of the server and of the model's process."""

    def bounds(cell: Cell) -> tuple[Bound, ...]:
        size = byte_count(cell[2])
        if size <= 64:
            return Bound("p50_us", most=0.5, of=PEER), Bound("server_cpu_us", most=0.5, of=PEER), Bound("wake_ups", most=2)
        return (Bound("p50_us", most=1 / 3 if size <= 4 << 20 else 0.2, of=PEER),)

    grid = cells(run.options, "shm", ("64",)) + cells(run.options, "shm", ("4M",) if run.options.quick else ("4M", "64M"), ("1",))
    return load_table(run, python_sides(run.pair, run.scratch), "identity in Python", list(dict.fromkeys(grid)), bounds)


def load_table(run: Run, pair: list[Side], what: str, grid: list[Cell], bounds: Callable[[Cell], tuple[Bound, ...]]) -> list[Table]:
    table = Table(what)
    with running(pair, run.scratch):
        for cell in grid:
            found = measured(pair, run.options, lambda side, cell=cell: measure_cell(side, cell, run.options.seconds))
            table.add(title(cell), found, *run.targets(*bounds(cell)))
    return [table]
