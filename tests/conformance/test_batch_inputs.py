"""What does each kind of `batch_input` tell a model of the requests in its batch?"""

import concurrent.futures
import itertools

import graphs
import numpy as np
import onnx
import pytest
import servers
from clients import fp32, open_client
from onnx import helper

# Requests with so many rows of two numbers run together.
ROWS = (3, 1, 2)
# What the model is told of requests with so many rows, in the order in which they came.
EXPECTED = {
    "BATCH_ELEMENT_COUNT": lambda rows: [2 * count for count in rows],
    "BATCH_ACCUMULATED_ELEMENT_COUNT": lambda rows: list(itertools.accumulate(2 * count for count in rows)),
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": lambda rows: list(itertools.accumulate((2 * count for count in rows), initial=0)),
    # As a shape.
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": lambda rows: [2 * max(rows)],
    # Of shape [requests, 2].
    "BATCH_ITEM_SHAPE": lambda rows: [dim for count in rows for dim in (count, 2)],
    "BATCH_ITEM_SHAPE_FLATTEN": lambda rows: [dim for count in rows for dim in (count, 2)],
}
ENGINES = {"embedded": "--onnxruntime-library=none", "library": servers.onnxruntime_flag()}


def write(repository, kind: str) -> None:
    """A model that gives each request all that it is told: TOLD, once for each element of COUNT."""
    cast = helper.make_node("Cast", ["told_shape"], ["told"], to=onnx.TensorProto.FLOAT)
    if kind.endswith("AS_SHAPE"):
        begin = [helper.make_node("Shape", ["TOLD"], ["told_shape"]), cast]
    else:
        begin = [helper.make_node("Identity", ["TOLD"], ["told"])]
    nodes = [
        *begin,
        helper.make_node("Reshape", ["told", "row"], ["as_row"]),
        helper.make_node("Reshape", ["COUNT", "column"], ["as_column"]),
        helper.make_node("Mul", ["as_column", "nothing"], ["zeros"]),
        helper.make_node("Add", ["as_row", "zeros"], ["Y"]),
    ]
    constants = [
        helper.make_tensor("row", onnx.TensorProto.INT64, [2], [1, -1]),
        helper.make_tensor("column", onnx.TensorProto.INT64, [2], [-1, 1]),
        helper.make_tensor("nothing", onnx.TensorProto.FLOAT, [1], [0.0]),
    ]
    dims = ["r", "d"] if kind == "BATCH_ITEM_SHAPE" else ["k"]
    inputs = [graphs.value("X", "FP32", ["n"]), graphs.value("TOLD", "FP32", dims), graphs.value("COUNT", "FP32", ["r"])]
    graph = helper.make_graph(nodes, "told", inputs, [graphs.value("Y", "FP32", ["r", 1 if kind.endswith("AS_SHAPE") else "k"])], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", graphs.OPSET)], ir_version=graphs.IR_VERSION)
    # ONNX Runtime knows that a shape of one dimension is one number.
    shape_dim = 1 if kind.endswith("AS_SHAPE") else -1
    folder = repository / kind.lower()
    (folder / "1").mkdir(parents=True)
    onnx.save(model, folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text(f"""\
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ {{ name: "X" data_type: TYPE_FP32 dims: [ -1, 2 ] allow_ragged_batch: true }} ]
output [ {{ name: "Y" data_type: TYPE_FP32 dims: [ {shape_dim} ] }} ]
batch_input [
  {{ kind: {kind} target_name: "TOLD" data_type: TYPE_FP32 source_input: "X" }},
  {{ kind: BATCH_ELEMENT_COUNT target_name: "COUNT" data_type: TYPE_FP32 source_input: "X" }}
]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
dynamic_batching {{ preferred_batch_size: [ {len(ROWS)} ] max_queue_delay_microseconds: 60000000 }}
""")


@pytest.fixture(scope="module", params=ENGINES)
def server(request, launcher, tmp_path_factory):
    if launcher.oracle or any(launcher.urls):
        pytest.skip("2.51 here has no ONNX backend")
    repository = tmp_path_factory.mktemp("told")
    for kind in EXPECTED:
        write(repository, kind)
    with launcher.running(f"told_{request.param}", ENGINES[request.param], repository=repository) as found:
        yield found


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_model_is_told_of_all_requests_of_its_batch(server, kind):
    def infer(rows: int):
        with open_client("grpc", server) as client:
            given = fp32("X", np.ones((1, rows, 2), np.float32))
            output = client.infer(kind.lower(), [given]).outputs["Y"]
            return output.shape, np.frombuffer(output.raw, np.float32).tolist()

    with concurrent.futures.ThreadPoolExecutor(len(ROWS)) as pool:
        found = list(pool.map(infer, ROWS))
    with open_client("http", server) as client:
        (counted,) = client.statistics(kind.lower())
    assert (counted["execution_count"], counted["inference_count"]) == (1, len(ROWS))
    orders = [EXPECTED[kind](order) for order in itertools.permutations(ROWS)]
    reported = found[0][1]
    assert reported in orders
    assert all(one == ([1, len(reported)], reported) for one in found)
