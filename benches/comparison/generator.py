"""What does the load generator measure on one server?"""

import json
import os
import subprocess

from .cells import Cell
from .repositories import ROOT
from .sides import Side


def bench_binary() -> str:
    return os.environ.get("NERITE_BENCH_BIN", str(ROOT / "target" / "release" / "nerite-bench"))


def bench(*arguments: str) -> list[dict]:
    """One run of the load generator: its JSON lines."""
    done = subprocess.run([bench_binary(), *arguments, "--json"], stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def measure_cell(side: Side, cell: Cell, options, *more: str) -> dict:
    protocol, placement, size, concurrency = cell
    address = side.server.http if protocol == "http" else side.server.grpc
    return bench(
        f"--{protocol}={address}", f"--placement={placement}", f"--bytes={size}", f"--concurrency={concurrency}",
        f"--seconds={options.seconds}", f"--warm-up={options.seconds / 3}", f"--pids={side.server.pid}",
        *more,
    )[0]
