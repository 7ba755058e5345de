"""How fast does a Python model ask another one, and how many responses a second does a decoupled one send?"""

import contextlib
import pathlib
import queue
import threading
import time

import numpy as np
from clients import Given, GrpcClient, grpc_channel, service_stub

from .cells import CONCURRENCY
from .generator import measure_cell
from .report import median, note, ratio, table_head
from .repositories import ROOT
from .sequences import cpu_us
from .sides import Side, python_sides, running

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


def calls_table(sides: list[Side], scratch: pathlib.Path, options) -> list[str]:
    """CPU is that of the server and its children together."""
    pair = python_sides(sides, scratch)
    for side in pair:
        for name, config in MODELS.items():
            write_model(side.repository, name, config)
    ours, theirs = (side.name for side in pair)
    lines = table_head("a Python model that asks another one, by shm", ours, theirs)
    with running(pair, scratch):
        for size in options.bytes or SIZES:
            for concurrency in options.concurrency or CONCURRENCY:
                for protocol in ("grpc", "http"):
                    cell = (protocol, "shm", size, concurrency)
                    found = measured(pair, options, lambda side, cell=cell: measure_cell(side, cell, options, "--model=asking"))
                    name = f"{'gRPC' if protocol == 'grpc' else 'HTTP'}, {size} B, c{concurrency}"
                    lines.append(f"| {name} | {columns(pair, found, ('per_second', 'p50_us', 'server_cpu_us'))} | – |")
        lines += [
            "", f"| a decoupled Python model, gRPC, {RESPONSES} responses a request | responses/s {ours} | {theirs} | ratio "
            f"| server CPU µs a response {ours} | {theirs} | ratio |", "|---|--:|--:|--:|--:|--:|--:|",
        ]  # fmt: skip
        for size in RESPONSE_BYTES:
            for streams in options.concurrency or CONCURRENCY:
                found = measured(pair, options, lambda side, size=size, streams=streams: stream(side, size, int(streams), options.seconds))
                lines.append(f"| {size} B, {streams} streams | {columns(pair, found, ('per_second', 'server_cpu_us'))} |")
    return lines


def write_model(repository: pathlib.Path, name: str, config: str) -> None:
    folder = repository / name / "1"
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder.parent / "config.pbtxt").write_text(f'backend: "python"\n{config}')
        (folder / "model.py").write_text((ROOT / "benches" / "peer" / f"{name}.py").read_text())


def measured(pair: list[Side], options, measure) -> dict[str, list[dict]]:
    """Results of all runs, by side; who goes first alternates."""
    found: dict[str, list[dict]] = {side.name: [] for side in pair}
    for run in range(options.runs):
        for side in pair if run % 2 == 0 else reversed(pair):
            found[side.name].append(measure(side))
            note(f"  {side.name}: {found[side.name][-1]['per_second']:,.0f} a second")
    return found


def columns(pair: list[Side], found: dict[str, list[dict]], keys: tuple[str, ...]) -> str:
    cells = []
    for key in keys:
        values = [median(found[side.name], key) for side in pair]
        cells += [f"{value:,.0f}" if value >= 10 else f"{value:.1f}" for value in values] + [ratio(*values)]
    return " | ".join(cells)


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
        except BaseException as failure:  # noqa: BLE001 - told below
            failures.append(failure)
            ready.abort()

    threads = [threading.Thread(target=infer, args=(at,)) for at in range(streams)]
    for one in threads:
        one.start()
    with contextlib.suppress(threading.BrokenBarrierError):
        ready.wait()
    began, cpu = time.monotonic(), whole_cpu_us(side.server.pid)
    ended.wait(seconds)
    ended.set()
    for one in threads:
        one.join()
    took, cpu, total = time.monotonic() - began, whole_cpu_us(side.server.pid) - cpu, sum(counts)
    if failures or not total:
        raise RuntimeError(f"{side.name} streams nothing: {failures[:1]}")
    return {"per_second": total / took, "server_cpu_us": cpu / total}


def whole_cpu_us(pid: int) -> float:
    """Processor time of a process and of its children so far."""
    children = {child for task in pathlib.Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()}
    return cpu_us(pid) + sum(cpu_us(int(child)) for child in children)


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
