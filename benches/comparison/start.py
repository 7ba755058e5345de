"""How long does a server take to be ready: T7?"""

import importlib.util
import pathlib
import statistics
import subprocess
import time

import servers

from .repositories import PYTHON_IDENTITY
from .sides import Side, python_sides, wait_ready

STARTS = 5


def start_table(sides: list[Side], scratch: pathlib.Path) -> list[str]:
    lines = [f"| start to ready with one model | ms, median of {STARTS} |", "|---|--:|"]
    models = ["identity_fp32"] + ["digits"] * bool(importlib.util.find_spec("onnxruntime"))
    rows = [(side, model, model) for side in sides for model in models]
    rows += [(side, "identity_fp32", PYTHON_IDENTITY) for side in python_sides(sides, scratch)]
    for side, model, name in rows:
        times = [time_start(side, model, scratch) for _ in range(STARTS)]
        lines.append(f"| {side.name}, {name} | {statistics.median(times):.0f} |")
    return lines


def time_start(side: Side, model: str, scratch: pathlib.Path) -> float:
    """Milliseconds from the start of the process to the first yes to /v2/health/ready."""
    http_port, grpc_port, metrics_port = servers.free_ports(3)
    ports = [f"--http-port={http_port}", f"--grpc-port={grpc_port}", f"--metrics-port={metrics_port}"]
    flags = ["--model-control-mode=explicit", f"--load-model={model}"]
    with (scratch / "start.log").open("wb") as log:
        begin = time.monotonic()
        process = subprocess.Popen([*side.command, *ports, *flags], env=side.environment, stdout=log, stderr=log)
        try:
            wait_ready(f"127.0.0.1:{http_port}")
            return (time.monotonic() - begin) * 1000
        finally:
            process.terminate()
            process.wait()
