"""What does a new connection with one request cost: L5?"""

import json
import socket
import time

import numpy as np

from . import counters
from .cells import byte_count, spelled
from .generator import MODEL
from .limit import limit, post, received
from .report import LIMIT, Bound, Table
from .sides import Run, Side, measured, running

SIZE = "64"


def new_connections(run: Run) -> list[Table]:
    table = Table("a new connection with one request, inline, one client in Python")
    bounds = run.targets(Bound("server_cpu_us", most=1.6, of=LIMIT))
    with running(run.pair, run.scratch), limit(run.ours, run.scratch, "http", "inline", SIZE) as least:
        sides = [*run.pair, *([least] if least else [])]
        table.add(f"{spelled('http')}, {SIZE} B", measured(sides, run.options, lambda side: connect(side, run.options.seconds)), *bounds)
    return [table]


def connect(side: Side, seconds: float) -> dict:
    """Connections one after the other. The client's own time is not in the figures, but in what the server waits for."""
    host, port = side.server.http.split(":")
    tensor = np.ones(byte_count(SIZE) // 4, np.float32).tobytes()
    given = {"name": "INPUT0", "shape": [len(tensor) // 4], "datatype": "FP32", "parameters": {"binary_data_size": len(tensor)}}
    request = post(json.dumps({"inputs": [given], "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}).encode(), tensor)

    def run() -> dict:
        count, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(request)
                received(connection)
            count += 1
        return {"per_second": count / seconds}

    return counters.per_request(side, MODEL, run)
