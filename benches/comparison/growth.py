"""Does a request cost the same among many regions, models and earlier requests: T11?"""

import dataclasses
import pathlib
import shutil

from .generator import measure_cell
from .memory import resident_mib
from .report import median, ratio
from .sides import Side, running

REGIONS = (1, 100, 10_000)
MODELS = (1, 500)
REQUESTS = 1_000_000


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
