"""What does a request of a sequence cost: L15?

`nerite-bench` sends no sequences. NVIDIA's perf_analyzer does (tests/perf_analyzer/setup_perf.py), so it asks both servers.
"""

import csv
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

from .report import median, note, ratio, table_head
from .repositories import ROOT, write_identity
from .sides import Side, moved, running

sys.path.append(str(ROOT / "tests" / "perf_analyzer"))

import setup_perf  # noqa: E402

CONCURRENCY = ("1", "16")
STRATEGIES = {"direct": "direct { }", "oldest": "oldest { max_candidate_sequences: 32 }"}
TARGET = 0.5
# Requests that were told before, by side and model.
COUNTED: dict[tuple[str, str], int] = {}
CONFIG = """\
name: "%s"
backend: "%s"
max_batch_size: 32
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [16] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [16] }]
sequence_batching { max_sequence_idle_microseconds: 5000000 %s }
instance_group [{ kind: KIND_CPU count: 1 }]
"""


def sequences_table(sides: list[Side], scratch: pathlib.Path, options) -> list[str]:
    tool = setup_perf.tool()
    if tool is None:
        return ["pending: no perf_analyzer (python tests/perf_analyzer/setup_perf.py)"]
    pair = [moved(side, scratch, "sequences") for side in sides]
    for side in pair:
        write_identity(side.repository, side.identity_backend)
        for name, strategy in STRATEGIES.items():
            write_model(side.repository, name, side.identity_backend, strategy)
    ours, theirs = (side.name for side in pair)
    lines = table_head("requests of sequences of 20, gRPC", ours, theirs)
    with running(pair, scratch):
        for strategy in STRATEGIES:
            for concurrency in CONCURRENCY:
                found = {side.name: [analyze(tool, side, strategy, concurrency, options) for _ in range(options.runs)] for side in pair}
                lines.append(row(found, [ours, theirs], f"{strategy}, c{concurrency}"))
    return lines


def row(found: dict, names: list[str], what: str) -> str:
    columns, cpu = [], 0.0
    for key in ("per_second", "p50_us", "server_cpu_us"):
        values = [median(found[name], key) for name in names]
        columns += [f"{value:,.0f}" for value in values] + [ratio(*values)]
        cpu = values[0] / values[1] if values[1] else 0.0
    return f"| {what} | {' | '.join(columns)} | L15: CPU ≤ {TARGET} · {'met' if cpu <= TARGET else '**missed**'} |"


def analyze(tool, side: Side, model: str, concurrency: str, options) -> dict:
    """One run of so many sequences at a time, each with one request under way."""
    command, environment = tool
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.csv"
        count = 2000 if options.quick else 20_000
        before = cpu_us(side.server.pid)
        done = subprocess.run(
            [*command, "-m", model, "-i", "grpc", "-u", side.server.grpc, f"--concurrency-range={concurrency}", "--async",
             "--sequence-length=20", "--sequence-length-variation=0", "--measurement-mode=count_windows",
             f"--measurement-request-count={count}", "--stability-percentage=999", "--max-trials=3", "-f", str(report)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        cpu = cpu_us(side.server.pid) - before
        if not report.exists():
            raise RuntimeError(f"perf_analyzer on {side.name} ended with {done.returncode}: {done.stdout[-1000:]}")
        line = next(csv.DictReader(report.open()))
    note(f"  {side.name}, {model}, c{concurrency}")
    return {
        "per_second": float(line["Inferences/Second"]),
        "p50_us": float(line["p50 latency"]),
        # All requests of the run, also those of windows that the report leaves out.
        "server_cpu_us": cpu / max(1, answered(side, model)),
    }


def answered(side: Side, model: str) -> int:
    """Requests of the model since this was last asked."""
    with urllib.request.urlopen(f"http://{side.server.http}/v2/models/{model}/stats") as answer:
        count = int(json.load(answer)["model_stats"][0]["inference_stats"]["success"]["count"])
    known = COUNTED.get((side.name, model), 0)
    COUNTED[side.name, model] = count
    return count - known


def cpu_us(pid: int) -> float:
    """Processor time of a process so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1e6 / os.sysconf("SC_CLK_TCK")


def write_model(repository: pathlib.Path, name: str, backend: str, strategy: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(CONFIG % (name, backend, strategy))
    if backend == "python":
        (repository / name / "1" / "model.py").write_text((ROOT / "benches" / "peer" / "identity.py").read_text())
