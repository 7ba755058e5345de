"""What does the load generator measure on one server?"""

import json
import os
import subprocess

from . import counters
from .cells import Cell
from .report import LIMIT
from .repositories import ROOT
from .sides import Side

MODEL = "identity_fp32"


def bench_binary() -> str:
    return os.environ.get("NERITE_BENCH_BIN", str(ROOT / "target" / "release" / "nerite-bench"))


def bench(*arguments: str, before: tuple[str, ...] = ()) -> list[dict]:
    """One run of the load generator: its JSON lines. `before` are the words of a command that starts it."""
    done = subprocess.run([*before, bench_binary(), *arguments, "--json"], stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def memcpy(size: str) -> dict[str, float]:
    """The time of a copy between two regions."""
    return {"p50_us": bench("memcpy", f"--bytes={size}")[0]["p50_us"]}


def send(side: Side, cell: Cell, seconds: float, *more: str, model: str = MODEL, before: tuple[str, ...] = ()) -> dict:
    """One closed loop over one cell. In the mix of `more` are the model's names and sizes."""
    protocol, placement, size, concurrency = cell
    if side.role == LIMIT:
        # It writes no output, so none is compared with the input.
        more = (*more, f"--output-bytes={size}")
    return bench(
        f"--{protocol}={side.address(protocol)}", f"--model={model}", f"--placement={placement}", f"--bytes={size}",
        f"--concurrency={concurrency}", f"--seconds={seconds}", f"--warm-up={seconds / 3}", f"--pids={side.server.pid}",
        *more, before=before,
    )[0]  # fmt: skip


def measure_cell(side: Side, cell: Cell, options, *more: str, model: str = MODEL) -> dict:
    return counters.per_request(side, model, lambda: send(side, cell, options.seconds, *more, model=model))


def count_calls(side: Side, cell: Cell, options, *more: str, model: str = MODEL) -> dict:
    """System calls and instructions of a request of this cell."""
    return counters.calls_per_request(
        side, model, lambda before: send(side, cell, options.seconds / 2, *more, model=model, before=tuple(before))
    )
