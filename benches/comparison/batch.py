"""What does dynamic batching gain: L12?

The small net has three dense layers and 1.3 million weights, so that a row alone costs as much memory traffic as sixteen together. SqueezeNet's
convolutions use each weight many times for a picture, so that little is left for batching to gain: what is compared is what the server adds.
"""

import dataclasses
import pathlib
from collections.abc import Callable

from .cells import PROTOCOLS, spelled
from .generator import measure_cell
from .report import PEER, Bound, Table
from .repositories import ROOT
from .sides import Run, measured, moved, running

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


def batching(run: Run) -> list[Table]:
    pair = [moved(side, run.scratch, "nets") for side in run.pair]
    found = [small_net()] if run.options.quick else [small_net(), squeeze_net()]
    for side in pair:
        for net in found:
            write_net(side.repository, net, side.onnx_backend)
    with running(pair, run.scratch, check=False):
        return [net_table(run, pair, net) for net in found]


def net_table(run: Run, pair: list, net: Net) -> Table:
    table = Table(f"{net.title}, inline, c{CONCURRENCY}; nerite: embedded engine, {run.peers_engine}")
    for protocol in PROTOCOLS:
        for model in net.models:
            cell = (protocol, "inline", str(4 * net.inputs), CONCURRENCY)
            found = measured(
                pair, run.options, lambda side, cell=cell, model=model: measure_cell(side, cell, run.options.seconds, model=model, is_fixed=True)
            )
            is_batched = model == net.models[1]
            bounds = run.targets(Bound("per_second", least=net.target, of=PEER)) if is_batched and net.target else ()
            table.add(f"{spelled(protocol)}, {'batched' if is_batched else 'one by one'}", found, *bounds)
    return table


def small_net() -> Net:
    return Net("net", "net of three layers", dense_graph, INPUT_FLOATS, OUTPUT_FLOATS, target=1.5)


def squeeze_net() -> Net:
    import squeeze_net as made

    return Net("squeezenet", "SqueezeNet", made.graph, made.INPUT_FLOATS, made.CLASSES)


def write_net(repository: pathlib.Path, net: Net, backend: str) -> None:
    """The same graph twice, without and with dynamic batching."""
    graph, is_python = net.graph(), backend == "python"
    runtime = 'backend: "python"' if is_python else 'platform: "onnxruntime_onnx"'
    for name, batching in zip(net.models, ("", "dynamic_batching { }")):
        version = repository / name / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").write_bytes(graph)
        if is_python:
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
