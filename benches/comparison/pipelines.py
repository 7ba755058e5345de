"""What do three steps of an ensemble cost: L14?

Each step is the compiled identity, so that what is measured is what a server does between the steps.
"""

import pathlib

from .generator import measure_cell
from .report import median, ratio, table_head
from .repositories import write_identity
from .sides import Side, moved, running

STEPS = 3
SIZES = ("64", "256K")
TARGET = 0.5
CONFIG = """\
name: "chain"
platform: "ensemble"
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [-1] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [-1] }]
ensemble_scheduling { step [ %s ] }
"""
STEP = """{
  model_name: "identity_fp32" model_version: -1
  input_map { key: "INPUT0" value: "%s" } output_map { key: "OUTPUT0" value: "%s" }
}"""


def ensemble_table(sides: list[Side], scratch: pathlib.Path, options) -> list[str]:
    pair = [moved(side, scratch, "chain") for side in sides]
    for side in pair:
        write_identity(side.repository, side.identity_backend)
        write_chain(side.repository)
    lines = table_head(f"{STEPS} steps", *(side.name for side in pair))
    with running(pair, scratch):
        for placement in ("inline", "shm"):
            for size in SIZES:
                for concurrency in ("1", "16"):
                    lines.append(row(pair, ("grpc", placement, size, concurrency), options))
    return lines


def row(pair: list[Side], cell: tuple[str, str, str, str], options) -> str:
    found = {side.name: [measure_cell(side, cell, options, "--model=chain") for _ in range(options.runs)] for side in pair}
    columns, cpu = [], 0.0
    for key in ("per_second", "p50_us", "server_cpu_us"):
        values = [median(found[side.name], key) for side in pair]
        columns += [f"{value:,.0f}" for value in values] + [ratio(*values)]
        cpu = values[0] / values[1] if values[1] else 0.0
    verdict = "met" if cpu <= TARGET else "**missed**"
    _, placement, size, concurrency = cell
    return f"| gRPC {placement}, {size} B, c{concurrency} | {' | '.join(columns)} | L14: CPU ≤ {TARGET} · {verdict} |"


def write_chain(repository: pathlib.Path) -> None:
    names = ["INPUT0", *(f"between_{at}" for at in range(1, STEPS)), "OUTPUT0"]
    steps = ", ".join(STEP % ends for ends in zip(names, names[1:]))
    (repository / "chain" / "1").mkdir(parents=True)
    (repository / "chain" / "config.pbtxt").write_text(CONFIG % steps)
