"""How much memory and disk does a server take: T8, T9?"""

import pathlib
import time

from .cells import PROTOCOLS, SIZES
from .counters import cpu_us, resident_mib, wake_ups
from .generator import measure_cell
from .report import Bound, Table
from .sides import Run, running

SETTLE_S = 5
IDLE_MIB, SETTLED_MIB, PROGRAM_MB = 15, 20, 30


def memory(run: Run) -> list[Table]:
    """Resident memory of fresh servers, right after payloads, and when they have had time to give it back."""
    table = Table("memory")
    moments = {"idle": {}, "after payloads of 64 B to 64 MiB": {}, f"{SETTLE_S} s later": {}}
    idle, loaded, settled = moments.values()
    with running(run.pair, run.scratch):
        for side in run.pair:
            pid = side.server.pid
            time.sleep(1)
            idle[side.role] = {"mib": resident_mib(pid)} | used_meanwhile(pid)
            for size in run.options.bytes or (SIZES[:-1] if run.options.quick else SIZES):
                for placement in ("inline", "shm"):
                    for protocol in PROTOCOLS:
                        measure_cell(side, (protocol, placement, size, "4"), run.options.seconds)
            loaded[side.role] = {"mib": resident_mib(pid)}
            time.sleep(SETTLE_S)
            settled[side.role] = {"mib": resident_mib(pid)}
    bounds = {"idle": Bound("mib", most=IDLE_MIB), f"{SETTLE_S} s later": Bound("mib", most=SETTLED_MIB)}
    for what, found in moments.items():
        table.add(what, found, *([bounds[what]] if what in bounds else []))
    return [table]


def used_meanwhile(pid: int) -> dict[str, float]:
    """What a server does while nobody sends anything."""
    slept, used = wake_ups(pid), cpu_us(pid)
    time.sleep(SETTLE_S)
    return {"idle_wake_ups": (wake_ups(pid) - slept) / SETTLE_S, "idle_cpu_ms": (cpu_us(pid) - used) / 1000 / SETTLE_S}


def size(run: Run) -> list[Table]:
    table = Table("program", remark="Triton's program has most of its code in libraries beside it, which do not count here.")
    found = {side.role: {"megabytes": pathlib.Path(side.command[0]).stat().st_size / 1e6} for side in run.pair}
    table.add("file", found, Bound("megabytes", most=PROGRAM_MB))
    return [table]
