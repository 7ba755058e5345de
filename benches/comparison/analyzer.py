"""What does NVIDIA's load generator measure on one server?

`tests/perf_analyzer/setup_perf.py` installs it. It takes more processor time for a request than the servers do, and lets the cores sleep in between.
"""

import csv
import pathlib
import subprocess
import sys
import tempfile

from . import counters
from .repositories import ROOT
from .sides import Side

sys.path.append(str(ROOT / "tests" / "perf_analyzer"))

import setup_perf  # noqa: E402

WINDOWS = 3


def is_installed() -> bool:
    return setup_perf.tool() is not None


def analyze(side: Side, protocol: str, model: str, concurrency: str, options, *more: str) -> dict:
    """One run of three windows. No window is taken to be unstable, so there are never more."""
    command, environment = setup_perf.tool()
    window_ms = max(100, int(options.seconds * 1000 / WINDOWS))
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.csv"
        words = [*command, "-m", model, "-i", protocol, "-u", side.address(protocol), f"--concurrency-range={concurrency}",
                 f"--measurement-interval={window_ms}", "--stability-percentage=999", f"--max-trials={WINDOWS}", "-f", str(report), *more]  # fmt: skip

        def run() -> dict:
            done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            if not report.exists():
                raise RuntimeError(f"perf_analyzer on {side.name} ended with {done.returncode}: {done.stdout[-1000:]}")
            line = next(csv.DictReader(report.open()))
            return {"per_second": float(line["Inferences/Second"]), "p50_us": float(line["p50 latency"])}

        # Its processor time is that of all requests, also of those that the report leaves out.
        return counters.per_request(side, model, run)
