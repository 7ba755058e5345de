"""How fast are requests answered: T1 to T5?"""

import math
import pathlib

from .cells import CONCURRENCY, Cell, Target, python_target_of
from .generator import bench, measure_cell
from .report import median, note, ratio
from .sides import Side, python_sides, running

PYTHON_SIZES = ("64", "256K", "4M", "64M")


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


def python_table(sides: list[Side], scratch: pathlib.Path, options) -> list[str]:
    """CPU is that of the server and its children together."""
    sizes, concurrency = options.bytes or PYTHON_SIZES, options.concurrency or CONCURRENCY
    grid = [(protocol, "shm", size, many) for size in sizes for many in concurrency for protocol in ("grpc", "http")]
    with running(pair := python_sides(sides, scratch), scratch):
        return load_table(pair, grid, python_target_of, options)


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
