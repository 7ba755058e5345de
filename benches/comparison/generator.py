"""What does `nerite bench` measure on one server?"""

import json
import subprocess

import servers

from . import counters
from .cells import Cell, byte_count
from .sides import Side

MODEL = "identity_fp32"
# The last three windows are reported, so that one third more of the time is a warm-up. No windows agree within 0 %, so that all are measured.
WINDOWS = 4
UNSTABLE_STATUS = 2


def run_bench(address: str, pid: int, cell: Cell, seconds: float, *more: str, model: str = MODEL, before: tuple[str, ...] = ()) -> dict:
    """A closed loop of `seconds` over one cell. `before` are the words of a command that starts the load generator."""
    protocol, placement, size, concurrency = cell
    memory = "system" if placement == "shm" else "none"
    command = [
        *before, str(servers.nerite_binary()), "bench", "--json", "-m", model, "-i", protocol, "-u", address, "--shared-memory", memory,
        "--output-shared-memory-size", str(byte_count(size)), "--concurrency-range", str(concurrency), "--server-pid", str(pid),
        "-p", str(seconds * 1000 / (WINDOWS - 1)), "-r", str(WINDOWS), "-s", "0", *more,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != UNSTABLE_STATUS:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    (point,) = json.loads(done.stdout)["points"]
    client, cost = point["client"], point["cost_per_request"]
    return {
        "per_second": client["inferences_per_second"],
        "p50_us": client["latency"]["percentiles"]["p50_us"],
        "server_cpu_us": cost["server_cpu_us"],
        "wake_ups": cost["server_wake_ups"],
    }


def of_size(cell: Cell) -> tuple[str, str]:
    """The words for an identity, whose input has a variable size."""
    return "--shape", f"INPUT0:{byte_count(cell[2]) // 4}"


def measure_cell(
    side: Side, cell: Cell, seconds: float, *more: str, model: str = MODEL, is_fixed: bool = False, before: tuple[str, ...] = ()
) -> dict:
    """`is_fixed`: the model's inputs have no variable dimension, and the size of the cell is theirs."""
    more = more if is_fixed else (*more, *of_size(cell))
    address = side.address(cell[0])
    if side.described_by:
        # It knows nothing but the answer.
        address, more = side.described_by.address(cell[0]), (*more, "--load-url", address)
    return run_bench(address, side.server.pid, cell, seconds, *more, model=model, before=before)


def count_calls(side: Side, cell: Cell, seconds: float) -> dict:
    """System calls and instructions of a request of this cell."""
    return counters.calls_per_request(side, MODEL, lambda before: measure_cell(side, cell, seconds, before=tuple(before)))
