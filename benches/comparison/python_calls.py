"""How fast does a Python model call another one, and how many responses a second does a decoupled one send?"""

import contextlib
import pathlib
import queue
import threading
import time

import numpy as np
from clients import Given, GrpcClient, grpc_channel, service_stub

from .cells import CONCURRENCY, cells, title
from .counters import cpu_us
from .generator import measure_cell
from .report import Table
from .repositories import ROOT
from .sides import Run, Side, measured, python_sides, running

SIZES = ("64", "4M")
# Responses of one request, and their bytes.
RESPONSES = 200
RESPONSE_BYTES = ("64", "64K")
MODELS = {
    "asking": """\
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [-1] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [-1] }]
""",
    "streaming": """\
input [{ name: "COUNT" data_type: TYPE_INT32 dims: [1] }, { name: "DATA" data_type: TYPE_FP32 dims: [-1] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [-1] }]
model_transaction_policy { decoupled: true }
""",
}


def nested_calls(run: Run) -> list[Table]:
    """CPU is that of the server and its children together."""
    pair = python_sides(run.pair, run.scratch)
    for side in pair:
        write_model(side.repository, "asking", MODELS["asking"])
    table = Table("a Python model that sends each request on to another one, by shm")
    with running(pair, run.scratch):
        for cell in cells(run.options, "shm", SIZES[:1] if run.options.quick else SIZES):
            table.add(title(cell), measured(pair, run.options, lambda side, cell=cell: measure_cell(side, cell, run.options.seconds, model="asking")))
    return [table]


def streamed_responses(run: Run) -> list[Table]:
    pair = python_sides(run.pair, run.scratch)
    for side in pair:
        write_model(side.repository, "streaming", MODELS["streaming"])
    table = Table(f"a decoupled Python model, gRPC, {RESPONSES} responses a request; CPU of each response")
    with running(pair, run.scratch):
        for size in RESPONSE_BYTES:
            for streams in run.options.concurrency or CONCURRENCY:
                found = measured(pair, run.options, lambda side, size=size, streams=streams: stream(side, size, int(streams), run.options.seconds))
                table.add(f"{size} B, {streams} streams", found)
    return [table]


def write_model(repository: pathlib.Path, name: str, config: str) -> None:
    folder = repository / name / "1"
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder.parent / "config.pbtxt").write_text(f'backend: "python"\n{config}')
        (folder / "model.py").write_text((ROOT / "benches" / "peer" / f"{name}.py").read_text())


def stream(side: Side, size: str, streams: int, seconds: float) -> dict:
    """So many streams, each with one request under way all the time: responses a second, and the server's CPU for each."""
    counts, failures, ended = [0] * streams, [], threading.Event()
    ready = threading.Barrier(streams + 1)

    def infer(at: int) -> None:
        try:
            with contextlib.closing(Responses(side, size)) as responses:
                responses.count_one()
                ready.wait()
                while not ended.is_set():
                    counts[at] += responses.count_one()
        except BaseException as failure:  # noqa: BLE001 - raised below
            failures.append(failure)
            ready.abort()

    threads = [threading.Thread(target=infer, args=(at,)) for at in range(streams)]
    for one in threads:
        one.start()
    with contextlib.suppress(threading.BrokenBarrierError):
        ready.wait()
    began, cpu = time.monotonic(), cpu_us(side.server.pid)
    ended.wait(seconds)
    ended.set()
    for one in threads:
        one.join()
    took, cpu, total = time.monotonic() - began, cpu_us(side.server.pid) - cpu, sum(counts)
    if failures or not total:
        raise RuntimeError(f"{side.name} streams nothing: {failures[:1]}")
    return {"responses_per_second": total / took, "server_cpu_us": cpu / total}


class Responses:
    """One gRPC stream to the decoupled model."""

    def __init__(self, side: Side, size: str):
        self.open, self.sent = contextlib.ExitStack(), queue.Queue()
        channel = self.open.enter_context(grpc_channel(side.server.grpc))
        byte_count = int(size.rstrip("K")) << (10 if size.endswith("K") else 0)
        data = np.zeros(byte_count // 4, np.float32)
        inputs = [Given("COUNT", "INT32", [1], np.array([RESPONSES], np.int32).tobytes()), Given("DATA", "FP32", [len(data)], data.tobytes())]
        self.request = GrpcClient(channel).request("streaming", inputs, parameters={"triton_enable_empty_final_response": True})
        self.call = service_stub(channel).ModelStreamInfer(iter(self.sent.get, None))

    def count_one(self) -> int:
        """Sends the request, and counts its responses."""
        self.sent.put(self.request)
        count = 0
        while True:
            one = next(self.call)
            if one.error_message:
                raise RuntimeError(one.error_message)
            if one.infer_response.parameters["triton_final_response"].bool_param:
                return count + bool(one.infer_response.raw_output_contents)
            count += 1

    def close(self) -> None:
        self.sent.put(None)
        self.call.cancel()
        self.open.close()
