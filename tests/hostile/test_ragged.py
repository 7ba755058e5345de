"""What if a client's request makes the server tell a model more numbers about it than there is memory for?

A `batch_input` has as many numbers as the largest request has elements, or as all requests have rows and dimensions. A client pays nothing for either: a
region without pages has any number of elements, and a shape without elements has any number of rows.
"""

import graphs
import numpy as np
import onnx
import pytest
import servers
from clients import Given, open_client, refuses
from onnx import helper
from regions import registered
from witness import are_answered, warm_up, witnesses

GIB = 1 << 30
# One byte in the region stands for four in the batch input.
REGION_BYTES = 100 * GIB
# Rows without elements, and the dimensions of each.
ROWS = 1 << 40
ENGINES = {"embedded": "--onnxruntime-library=none", "library": servers.onnxruntime_flag()}
CONFIG = """\
platform: "onnxruntime_onnx"
max_batch_size: {rows_max}
input [ {{ name: "X" data_type: TYPE_UINT8 dims: [ {dims} ] allow_ragged_batch: true }} ]
output [ {{ name: "Y" data_type: TYPE_INT64 dims: [ {shape_dims} ] }} ]
batch_input [ {{ kind: {kind} target_name: "TOLD" data_type: {datatype} source_input: "X" }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
# Each kind whose size a client chooses: the dimensions of its TOLD, and those of X in the configuration.
KINDS = {
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": (["k"], "-1"),
    "BATCH_ITEM_SHAPE": (["r", "d"], "-1, -1"),
    "BATCH_ITEM_SHAPE_FLATTEN": (["k"], "-1, -1"),
}
DATATYPES = ("INT32", "FP32")


def model_of(kind: str, datatype: str) -> str:
    return f"{kind}_{datatype}".lower()


def put(repository, kind: str, datatype: str) -> None:
    """A model that answers with the shape of what it is told."""
    shape, dims = KINDS[kind]
    nodes = [helper.make_node("Shape", ["TOLD"], ["Y"])]
    inputs = [graphs.value("X", "UINT8", ["n"]), graphs.value("TOLD", datatype, shape)]
    name = model_of(kind, datatype)
    (repository / name / "1").mkdir(parents=True)
    onnx.save(graphs.finish(name, nodes, inputs, [graphs.value("Y", "INT64", [len(shape)])]), repository / name / "1" / "model.onnx")
    config = CONFIG.format(rows_max=0, dims=dims, shape_dims=len(shape), kind=kind, datatype=f"TYPE_{datatype}")
    (repository / name / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module", params=ENGINES)
def server(request, launcher):
    if launcher.oracle:
        pytest.skip("2.51 here has no ONNX backend")
    name = f"hostile_ragged_{request.param}"
    repository = launcher.copy_of(name, "identity_fp32", "identity_bytes", "simple")
    for kind in KINDS:
        for datatype in DATATYPES:
            put(repository, kind, datatype)
    with launcher.running(name, ENGINES[request.param], repository=repository) as found:
        yield found


@pytest.mark.parametrize("datatype", DATATYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_told_of_a_request_that_fits(server, kind, datatype):
    shape = [3] if kind == "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE" else [3, 2]
    expect = {"BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": [3], "BATCH_ITEM_SHAPE": [3, 1], "BATCH_ITEM_SHAPE_FLATTEN": [3]}[kind]
    with open_client("grpc", server) as client:
        given = Given("X", "UINT8", shape, bytes(int(np.prod(shape))))
        output = client.infer(model_of(kind, datatype), [given]).outputs["Y"]
    assert np.frombuffer(output.raw, np.int64).tolist() == expect


def is_refused(server, protocol: str, kind: str, datatype: str, given) -> None:
    with witnesses(server) as watching, open_client(protocol, server) as client:
        warm_up(watching)
        with refuses("UNAVAILABLE", "the server has no memory for batch input 'TOLD': "):
            client.infer(model_of(kind, datatype), [given])
        are_answered(watching, 3)
    assert server.process.poll() is None, f"the server died:\n{server.log_text()[-3000:]}"


@pytest.mark.parametrize("datatype", DATATYPES)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_region_without_pages_that_has_billions_of_elements_is_refused(server, protocol, datatype):
    kind = "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"
    with open_client(protocol, server) as owner, registered(owner, REGION_BYTES) as made:
        is_refused(server, protocol, kind, datatype, Given("X", "UINT8", [REGION_BYTES], region=(made.name, REGION_BYTES, 0)))


@pytest.mark.parametrize("datatype", DATATYPES)
@pytest.mark.parametrize("kind", ["BATCH_ITEM_SHAPE", "BATCH_ITEM_SHAPE_FLATTEN"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_shape_of_no_elements_with_billions_of_rows_is_refused(server, protocol, kind, datatype):
    is_refused(server, protocol, kind, datatype, Given("X", "UINT8", [ROWS, 0], b""))
