"""How much memory and disk does a server take: T8, T9?"""

import contextlib
import pathlib
import re
import time

from .cells import SIZES
from .generator import measure_cell
from .sides import Side, running

SETTLE_S = 5


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
