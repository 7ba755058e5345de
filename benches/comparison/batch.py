"""What does dynamic batching gain: L12?

The small net has three dense layers and 1.3 million weights, so that a row alone costs as much memory traffic as sixteen together. SqueezeNet's
convolutions use each weight many times for a picture, so that little is left for batching to gain: what is compared is what the server adds.
"""

import dataclasses
import importlib.util
import pathlib
from collections.abc import Callable

from .generator import measure_cell
from .report import median, ratio
from .repositories import ROOT
from .sides import Side, moved, running

INPUT_FLOATS, HIDDEN, OUTPUT_FLOATS = 256, 1024, 10
CONCURRENCY = "16"
PEER_MODEL = (ROOT / "benches" / "peer" / "batched_net.py").read_text()
CONFIG = """\
name: "{name}"
{runtime}
max_batch_size: 16
input [{{ name: "x" data_type: TYPE_FP32 dims: [{inputs}] }}]
output [{{ name: "y" data_type: TYPE_FP32 dims: [{outputs}] }}]
instance_group [{{ kind: KIND_CPU count: 1 }}]
parameters [
  {{ key: "intra_op_thread_count" value: {{ string_value: "1" }} }},
  {{ key: "inter_op_thread_count" value: {{ string_value: "1" }} }}
]
{batching}
"""


@dataclasses.dataclass(frozen=True)
class Net:
    """A graph that is served twice, without and with dynamic batching."""

    name: str
    title: str
    graph: Callable[[], bytes]
    inputs: int
    outputs: int
    # Of the requests per second with batching, against the peer's.
    target: float | None = None

    @property
    def models(self) -> tuple[str, str]:
        return f"{self.name}_alone", f"{self.name}_batched"


def batch_table(sides: list[Side], scratch: pathlib.Path, options) -> list[str]:
    if not (importlib.util.find_spec("onnx") and importlib.util.find_spec("onnxruntime")):
        return ["pending: this Python has no onnx, or no onnxruntime for the peer's model"]
    pair = [moved(side, scratch, "nets") for side in sides]
    found = nets()
    for side, runtime in zip(pair, ('platform: "onnxruntime_onnx"', 'backend: "python"')):
        for net in found:
            write_net(side.repository, net, runtime)
    lines = []
    with running(pair, scratch, check=False):
        for net in found:
            measured = {
                (protocol, model, side.name): [measure_model(side, protocol, net, model, options) for _ in range(options.runs)]
                for protocol in ("grpc", "http") for model in net.models for side in pair
            }
            lines += ["", *lines_of(net, measured, [side.name for side in pair])]
    return lines[1:]


def nets() -> list[Net]:
    import squeeze_net

    return [
        Net("net", "net of three layers", dense_graph, INPUT_FLOATS, OUTPUT_FLOATS, target=1.5),
        Net("squeezenet", "SqueezeNet", squeeze_net.graph, squeeze_net.INPUT_FLOATS, squeeze_net.CLASSES),
    ]


def lines_of(net: Net, found: dict, names: list[str]) -> list[str]:
    ours, theirs = names
    lines = [
        f"| {net.title}, inline, c{CONCURRENCY} | infer/s {ours} | {theirs} (onnxruntime in Python) | ratio "
        f"| p50 µs {ours} | {theirs} | ratio | server CPU µs {ours} | {theirs} | ratio | target |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for protocol in ("grpc", "http"):
        for model in net.models:
            columns = []
            for key in ("per_second", "p50_us", "server_cpu_us"):
                values = [median(found[protocol, model, name], key) for name in names]
                columns += [f"{value:,.0f}" for value in values] + [ratio(*values)]
            verdict = "–"
            is_batched = model == net.models[1]
            if is_batched and net.target:
                rate = [median(found[protocol, model, name], "per_second") for name in names]
                verdict = f"L12: infer/s ≥ {net.target} · {'met' if rate[0] >= net.target * rate[1] else '**missed**'}"
            what = "batched" if is_batched else "one by one"
            lines.append(f"| {'gRPC' if protocol == 'grpc' else 'HTTP'}, {what} | {' | '.join(columns)} | {verdict} |")
    return lines


def measure_model(side: Side, protocol: str, net: Net, model: str, options) -> dict:
    cell = (protocol, "inline", str(4 * net.inputs), CONCURRENCY)
    arguments = (f"--model={model}", "--input=x", "--output=y", f"--output-bytes={4 * net.outputs}", "--batch")
    return measure_cell(side, cell, options, *arguments)


def write_net(repository: pathlib.Path, net: Net, runtime: str) -> None:
    """The same graph twice, without and with dynamic batching."""
    graph = net.graph()
    for name, batching in zip(net.models, ("", "dynamic_batching { }")):
        version = repository / name / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").write_bytes(graph)
        if "python" in runtime:
            (version / "model.py").write_text(PEER_MODEL)
        text = CONFIG.format(name=name, runtime=runtime, batching=batching, inputs=net.inputs, outputs=net.outputs)
        (version.parent / "config.pbtxt").write_text(text)


def dense_graph() -> bytes:
    """Three dense layers with weights that are the same each time."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(7)
    sizes = (INPUT_FLOATS, HIDDEN, HIDDEN, OUTPUT_FLOATS)
    nodes, weights = [], []
    for at, (rows, columns) in enumerate(zip(sizes, sizes[1:])):
        values = random.standard_normal((rows, columns), np.float32) / np.float32(rows) ** 0.5
        weights.append(numpy_helper.from_array(values, f"w{at}"))
        is_last = at == len(sizes) - 2
        nodes.append(helper.make_node("MatMul", ["x" if at == 0 else f"a{at}", f"w{at}"], ["y" if is_last else f"m{at}"]))
        if not is_last:
            nodes.append(helper.make_node("Relu", [f"m{at}"], [f"a{at + 1}"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", size])
            for name, size in (("x", INPUT_FLOATS), ("y", OUTPUT_FLOATS))]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
