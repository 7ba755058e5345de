"""What does dynamic batching gain: L12?

The net has three dense layers and 1.3 million weights, so that a row alone costs as much memory traffic as sixteen together.
"""

import importlib.util
import pathlib

from .generator import measure_cell
from .report import median, ratio
from .repositories import ROOT
from .sides import Side, moved, running

INPUT_FLOATS, HIDDEN, OUTPUT_FLOATS = 256, 1024, 10
CONCURRENCY = "16"
NETS = ("net_alone", "net_batched")
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
TARGET = 1.5


def batch_table(sides: list[Side], scratch: pathlib.Path, options) -> list[str]:
    if not (importlib.util.find_spec("onnx") and importlib.util.find_spec("onnxruntime")):
        return ["pending: this Python has no onnx, or no onnxruntime for the peer's model"]
    pair = [moved(side, scratch, "nets") for side in sides]
    for side, runtime in zip(pair, ('platform: "onnxruntime_onnx"', 'backend: "python"')):
        write_nets(side.repository, runtime)
    with running(pair, scratch, check=False):
        found = {
            (protocol, net, side.name): [measure_net(side, protocol, net, options) for _ in range(options.runs)]
            for protocol in ("grpc", "http") for net in NETS for side in pair
        }
    return lines_of(found, [side.name for side in pair])


def lines_of(found: dict, names: list[str]) -> list[str]:
    ours, theirs = names
    lines = [
        f"| net of three layers, inline, c{CONCURRENCY} | infer/s {ours} | {theirs} (onnxruntime in Python) | ratio "
        f"| p50 µs {ours} | {theirs} | ratio | server CPU µs {ours} | {theirs} | ratio | target |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for protocol in ("grpc", "http"):
        for net in NETS:
            columns = []
            for key in ("per_second", "p50_us", "server_cpu_us"):
                values = [median(found[protocol, net, name], key) for name in names]
                columns += [f"{value:,.0f}" for value in values] + [ratio(*values)]
            verdict = "–"
            if net == "net_batched":
                rate = [median(found[protocol, net, name], "per_second") for name in names]
                verdict = f"L12: infer/s ≥ {TARGET} · {'met' if rate[0] >= TARGET * rate[1] else '**missed**'}"
            what = "batched" if net == "net_batched" else "one by one"
            lines.append(f"| {'gRPC' if protocol == 'grpc' else 'HTTP'}, {what} | {' | '.join(columns)} | {verdict} |")
    return lines


def measure_net(side: Side, protocol: str, net: str, options) -> dict:
    cell = (protocol, "inline", str(4 * INPUT_FLOATS), CONCURRENCY)
    asked = (f"--model={net}", "--input=x", "--output=y", f"--output-bytes={4 * OUTPUT_FLOATS}", "--batch")
    return measure_cell(side, cell, options, *asked)


def write_nets(repository: pathlib.Path, runtime: str) -> None:
    """The same graph twice, without and with dynamic batching."""
    graph = net()
    for name, batching in zip(NETS, ("", "dynamic_batching { }")):
        version = repository / name / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").write_bytes(graph)
        if "python" in runtime:
            (version / "model.py").write_text(PEER_MODEL)
        text = CONFIG.format(name=name, runtime=runtime, batching=batching, inputs=INPUT_FLOATS, outputs=OUTPUT_FLOATS)
        (version.parent / "config.pbtxt").write_text(text)


def net() -> bytes:
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
