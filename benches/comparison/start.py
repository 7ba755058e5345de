"""How long does a server take to be ready, and to stop: T7?"""

import pathlib
import subprocess
import time

import servers

from .report import Bound, Table
from .repositories import PYTHON_IDENTITY
from .sides import Run, Side, digit_sides, measured, python_sides, wait_ready

IDENTITY_MS, ONNX_MS, PYTHON_MS = 20, 30, 150


def start(run: Run) -> list[Table]:
    table = Table("one model")
    python, digits = python_sides(run.pair, run.scratch), digit_sides(run.pair, run.scratch)
    # The target is for ONNX Runtime. By default nerite's own engine runs the net.
    with_library = [run.with_onnxruntime(side) for side in digits]
    rows = [
        ("identity", run.pair, "identity_fp32", IDENTITY_MS),
        (f"digit net, embedded engine; {run.peers_engine}", digits, "digits", None),
        (f"digit net, ONNX Runtime; {run.peers_engine}", with_library, "digits", ONNX_MS),
        (PYTHON_IDENTITY, python, "identity_fp32", PYTHON_MS),
    ]
    for what, pair, model, most in rows:
        found = measured(pair, run.options, lambda side, model=model: time_start(side, model, run.scratch))
        table.add(what, found, *run.targets(*([Bound("start_ms", most=most)] if most else [])))
    return [table]


def time_start(side: Side, model: str, scratch: pathlib.Path) -> dict[str, float]:
    """From the start of the process to the first yes to /v2/health/ready, and from the signal to its end."""
    http_port, grpc_port, metrics_port = servers.free_ports(3)
    ports = [f"--http-port={http_port}", f"--grpc-port={grpc_port}", f"--metrics-port={metrics_port}"]
    flags = ["--model-control-mode=explicit", f"--load-model={model}"]
    with (scratch / "start.log").open("wb") as log:
        begin = time.monotonic()
        process = subprocess.Popen([*side.command, *ports, *flags], env=side.environment, stdout=log, stderr=log)
        try:
            wait_ready(f"127.0.0.1:{http_port}")
            ready = time.monotonic()
        finally:
            process.terminate()
            process.wait()
        return {"start_ms": (ready - begin) * 1000, "stop_ms": (time.monotonic() - ready) * 1000}
