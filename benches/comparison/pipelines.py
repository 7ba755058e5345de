"""What do three steps of an ensemble cost: L14?

Each step is the compiled identity, so that what is measured is what a server does between the steps.
"""

import pathlib

from .cells import CONCURRENCY, title
from .generator import measure_cell
from .report import PEER, Bound, Table
from .repositories import write_identity
from .sides import Run, measured, moved, running

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


def ensemble(run: Run) -> list[Table]:
    pair = [moved(side, run.scratch, "chain") for side in run.pair]
    for side in pair:
        write_identity(side.repository, side.identity_backend)
        write_chain(side.repository)
    table = Table(f"ensemble of {STEPS} identity steps")
    with running(pair, run.scratch):
        for placement in ("inline", "shm"):
            for size in run.options.bytes or (SIZES[:1] if run.options.quick else SIZES):
                for many in run.options.concurrency or CONCURRENCY:
                    cell = ("grpc", placement, size, many)
                    found = measured(pair, run.options, lambda side, cell=cell: measure_cell(side, cell, run.options.seconds, model="chain"))
                    table.add(title(cell), found, *run.targets(Bound("server_cpu_us", most=TARGET, of=PEER)))
    return [table]


def write_chain(repository: pathlib.Path) -> None:
    names = ["INPUT0", *(f"between_{at}" for at in range(1, STEPS)), "OUTPUT0"]
    steps = ", ".join(STEP % ends for ends in zip(names, names[1:]))
    (repository / "chain" / "1").mkdir(parents=True)
    (repository / "chain" / "config.pbtxt").write_text(CONFIG % steps)
