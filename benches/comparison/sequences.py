"""What does a request of a sequence cost: L15?"""

import pathlib

from .cells import CONCURRENCY
from .generator import measure_cell
from .report import PEER, Bound, Table
from .repositories import ROOT, write_identity
from .sides import Run, measured, moved, running

STRATEGIES = {"direct": "direct { }", "oldest": "oldest { max_candidate_sequences: 32 }"}
TARGET = 0.5
CONFIG = """\
name: "%s"
backend: "%s"
max_batch_size: 32
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [16] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [16] }]
sequence_batching { max_sequence_idle_microseconds: 5000000 %s }
instance_group [{ kind: KIND_CPU count: 1 }]
"""


def sequences(run: Run) -> list[Table]:
    table = Table("requests of sequences of 20, inline, gRPC")
    pair = [moved(side, run.scratch, "sequences") for side in run.pair]
    for side in pair:
        write_identity(side.repository, side.identity_backend)
        for name, strategy in STRATEGIES.items():
            write_model(side.repository, name, side.identity_backend, strategy)
    words = ("--sequence-length=20", "--sequence-length-variation=0")
    with running(pair, run.scratch):
        for strategy in STRATEGIES:
            for many in run.options.concurrency or CONCURRENCY:
                cell = ("grpc", "inline", "64", many)
                found = measured(
                    pair,
                    run.options,
                    lambda side, strategy=strategy, cell=cell: measure_cell(side, cell, run.options.seconds, *words, model=strategy, is_fixed=True),
                )
                table.add(f"{strategy}, c{many}", found, *run.targets(Bound("server_cpu_us", most=TARGET, of=PEER)))
    return [table]


def write_model(repository: pathlib.Path, name: str, backend: str, strategy: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(CONFIG % (name, backend, strategy))
    if backend == "python":
        (repository / name / "1" / "model.py").write_text((ROOT / "benches" / "peer" / "identity.py").read_text())
