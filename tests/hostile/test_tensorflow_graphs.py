"""Does a graph that is broken, or asks for the impossible, leave the server up and its other models right?

Each graph is loaded from the repository, and where a client may send models, sent by one. Each refusal says which node is at fault.
"""

import base64
import pathlib
import sys

import numpy as np
import pytest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "conformance"))

from clients import Refused, fp32, int32, open_client  # noqa: E402
from tensorflow_setup import (FLOAT, INT32, Shape, array, backend_directory, constant, given, node, placeholder, put)  # noqa: E402

FLAGS = ["--exit-on-error=false", "--model-control-mode=explicit", "--load-model=*"]


def whole(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def doubled(count: int) -> bytes:
    """A tensor that is joined with itself, so often."""
    steps = [constant("axis", np.array(0, np.int32)), constant("c0", whole(1, 2, 3, 4))]
    steps += [node(f"c{at + 1}", "ConcatV2", f"c{at}", f"c{at}", "axis") for at in range(count)]
    return b"".join(steps) + placeholder("x", 4, kind=INT32) + node("y", "Add", "x", f"c{count}")


X = placeholder("x", -1, 4)
REFUSED = {
    "no_protobuf": (b"\xff" * 100, "no frozen graph"),
    "empty": (b"", "it has no node"),
    "cut": (X[:-3], "no frozen graph"),
    "cycle": (X + node("a", "Add", "x", "b") + node("b", "Neg", "a") + node("c", "Neg", "b"), "needs its own output"),
    "own_input": (X + node("a", "Add", "x", "a") + node("b", "Neg", "a"), "needs its own output"),
    "twice": (X + X + node("a", "Neg", "x"), "two nodes of the graph are called 'x'"),
    "missing": (X + node("a", "Add", "x", "nothing"), "takes 'nothing', which is not in the graph"),
    "unsupported": (X + node("a", "MatrixInverse", "x") + node("b", "Neg", "a"), "lacks: MatrixInverse (node 'a')"),
    "no_inputs": (X + node("a", "Add"), "0 inputs, and needs 2"),
    "second_output": (X + node("a", "Neg", "x:1"), "takes output 1 of 'x'"),
    "no_shape": (node("x", "Placeholder", dtype=("type", FLOAT)) + node("y", "Neg", "x"), "placeholder 'x' of the graph: it has no shape"),
    "no_datatype": (node("x", "Placeholder", shape=Shape((1,))) + node("y", "Neg", "x"), "it does not say its 'dtype'"),
    "odd_datatype": (placeholder("x", 1, kind=8) + node("y", "Neg", "x"), "DT_COMPLEX64"),
    "unknown_datatype": (placeholder("x", 1, kind=9999) + node("y", "Neg", "x"), "(9999)"),
    "huge_input": (placeholder("x", 1 << 40, 1 << 40) + node("y", "Neg", "x"), "more than 1073741824 bytes"),
    "huge_constant": (X + node("c", "Const", dtype=("type", FLOAT), value=b"") + node("y", "Add", "x", "c"), "it has no value"),
    "huge_fill": (constant("d", whole(1 << 20, 1 << 20)) + constant("v", np.array(1, np.float32)) + node("f", "Fill", "d", "v")
                  + X + node("y", "Add", "x", "f"), "node 'f' (Fill)"),
    "negative_fill": (constant("d", whole(-1)) + constant("v", np.array(1, np.float32)) + node("f", "Fill", "d", "v")
                      + X + node("y", "Add", "x", "f"), "negative dimension"),
    "huge_tile": (X + constant("t", whole(1 << 30, 1 << 30)) + node("y", "Tile", "x", "t"), "node 'y' (Tile)"),
    "huge_pad": (X + constant("p", np.array([[0, 1 << 30], [0, 1 << 30]], np.int32)) + node("y", "Pad", "x", "p"), "node 'y' (Pad)"),
    "huge_product": (placeholder("x", 1 << 16, 1) + placeholder("z", 1, 1 << 16) + node("y", "MatMul", "x", "z"), "node 'y' (MatMul)"),
    "doubling": (doubled(60), "(ConcatV2)"),
    "endless_range": (constant("a", np.array(0, np.int32)) + constant("b", np.array(2**31 - 1, np.int32)) + constant("s", np.array(1, np.int32))
                      + node("r", "Range", "a", "b", "s") + placeholder("x", 1, kind=INT32) + node("y", "Add", "x", "r"), "more than 1024 numbers"),
    "still_range": (constant("a", np.array(0, np.int32)) + constant("s", np.array(0, np.int32)) + node("r", "Range", "a", "a", "s")
                    + placeholder("x", 1, kind=INT32) + node("y", "Add", "x", "r"), "its step is 0"),
    "axis_away": (X + constant("a", np.array(-9, np.int32)) + node("y", "ConcatV2", "x", "x", "a"), "axis -9 is not one"),
    "axis_of_values": (X + placeholder("a", kind=INT32) + node("y", "ConcatV2", "x", "x", "a"), "depends on the values of an input"),
    "shape_of_values": (X + placeholder("s", 2, kind=INT32) + node("y", "Reshape", "x", "s"), "depends on the values of an input"),
    "no_stride": (placeholder("x", 1, 4, 4, 1) + constant("k", np.ones((1, 1, 1, 1), np.float32))
                  + node("y", "Conv2D", "x", "k", strides=[1, 0, 0, 1], padding="SAME"), "strides [1, 0, 0, 1]"),
    "no_step": (X + constant("b", whole(0)) + constant("e", whole(4)) + constant("s", whole(0)) + node("y", "StridedSlice", "x", "b", "e", "s"),
                "a step must be 1 or more"),
    "kernel_too_large": (placeholder("x", 1, 4, 4, 1) + constant("k", np.ones((9, 9, 1, 1), np.float32))
                         + node("y", "Conv2D", "x", "k", strides=[1, 1, 1, 1], padding="VALID"), "does not fit shape"),
    "training": (placeholder("x", 1, 2, 2, 1) + constant("o", np.ones(1, np.float32)) + node("y", "FusedBatchNormV3", "x", "o", "o", "o", "o"),
                 "made for training"),
    "whole_roots": (placeholder("x", 4, kind=INT32) + node("y", "Sqrt", "x"), "its input is INT32, and this engine has it for"),
    "whole_square": (placeholder("x", 4, kind=INT32) + node("y", "Mul", "x", "x"), "its input is INT32, and this engine has it for"),
    "long_chain": (X + b"".join(node(f"n{at}", "Neg", f"n{at - 1}" if at else "x") for at in range(20000)), "need 20001 nodes"),
    "many_dims": (placeholder("x", *[1] * 200) + node("y", "Neg", "x"), "node 'x' (Placeholder)"),
}  # fmt: skip
DIVIDING = placeholder("a", 4, kind=INT32) + placeholder("b", 4, kind=INT32) + node("c", "Div", "a", "b")
GATHERING = constant("table", np.arange(12, dtype=np.float32).reshape(4, 3)) + placeholder("at", -1, kind=INT32) \
    + constant("axis", np.array(0, np.int32)) + node("y", "GatherV2", "table", "at", "axis")  # fmt: skip
GROWING = X + constant("perm", whole(1, 0)) + placeholder("z", 4, -1) + node("y", "MatMul", "x", "z")
WINDOW = placeholder("x", -1, -1, -1, 1) + constant("k", np.ones((3, 3, 1, 1), np.float32)) \
    + node("y", "Conv2D", "x", "k", strides=[1, 1, 1, 1], padding="VALID")  # fmt: skip
CHAIN = X + b"".join(node(f"n{at}", "Abs" if at % 2 else "Neg", f"n{at - 1}" if at else "x") for at in range(2000))


@pytest.fixture(scope="module")
def graph_server(launcher):
    directory = backend_directory(launcher)
    repository = launcher.scratch / "tensorflow_graphs"
    put(repository, "right", X + node("y", "Neg", "x"), 'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]')
    put(repository, "gathering", GATHERING, 'input [ { name: "at" data_type: TYPE_INT32 dims: [ -1 ] } ]')
    for name, graph in {"dividing": DIVIDING, "growing": GROWING, "window": WINDOW, "chain": CHAIN}.items():
        put(repository, name, graph)
    turned = placeholder("a", 2, kind=INT32) + placeholder("b", 2, kind=INT32) + placeholder("unused", 1, kind=INT32)
    turned += node("y", "Sub", "b", "a")
    sides = "input [ { name: '%s' data_type: TYPE_INT32 dims: [ %d ] }, { name: '%s' data_type: TYPE_INT32 dims: [ %d ] }," \
            "{ name: '%s' data_type: TYPE_INT32 dims: [ %d ] } ]"  # fmt: skip
    put(repository, "turned", turned, sides % ("a", 2, "b", 2, "unused", 1))
    put(repository, "turned_by_name", turned, sides % ("unused", 1, "b", 2, "a", 2))
    put(repository, "wrong_type", X + node("y", "Neg", "x"), 'input [ { name: "x" data_type: TYPE_INT32 dims: [ -1, 4 ] } ]')
    put(repository, "wrong_dims", X + node("y", "Neg", "x"), 'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 5 ] } ]')
    put(repository, "no_input", X + node("y", "Neg", "x"), 'input [ { name: "y" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]')
    put(repository, "no_output", X + node("y", "Neg", "x"), 'output [ { name: "z" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]')
    put(repository, "given_shape", node("x", "Placeholder", dtype=("type", FLOAT)) + node("y", "Neg", "x"),
        'input [ { name: "x" data_type: TYPE_FP32 dims: [ 2, 2 ] } ]')  # fmt: skip
    for name, (graph, _) in REFUSED.items():
        put(repository, name, graph)
    with launcher.running("tensorflow_graphs", f"--backend-directory={directory}", *FLAGS, repository=repository) as found:
        yield found


@pytest.fixture
def client(graph_server):
    with open_client("http", graph_server) as found:
        yield found


def is_right(client) -> bool:
    reply = client.infer("right", [fp32("x", [[1, -2, 3, 0]])])
    return array(reply.outputs["y"]).tolist() == [[-1, 2, -3, 0]]


def why(client, model: str) -> str:
    (only,) = [one for one in client.index() if one["name"] == model]
    assert only["state"] == "UNAVAILABLE", only
    return only["reason"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_graph_that_cannot_be_is_refused_with_its_node(client, name):
    assert REFUSED[name][1] in why(client, name), why(client, name)
    assert is_right(client)


@pytest.mark.parametrize("name", ["no_protobuf", "cycle", "huge_fill", "doubling", "unsupported"])
def test_a_client_may_send_it_as_well(client, name):
    files = {"config": '{"name": "sent", "platform": "tensorflow_graphdef"}',
             "file:1/model.graphdef": base64.b64encode(REFUSED[name][0]).decode()}  # fmt: skip
    with pytest.raises(Refused) as refused:
        client.load("sent", files)
    assert refused.value.text and is_right(client)


CONFIGURED = [("wrong_type", "it is FP32, and the configuration says INT32"), ("wrong_dims", "it has the shape [-1, 4]"),
              ("no_input", "input 'y' is no placeholder"), ("no_output", "output 'z' is no node")]  # fmt: skip


@pytest.mark.parametrize("name, text", CONFIGURED)
def test_a_configuration_that_does_not_fit_says_so(client, name, text):
    assert text in why(client, name), why(client, name)


def test_a_placeholder_without_a_shape_takes_that_of_the_configuration(client):
    reply = client.infer("given_shape", [fp32("x", [[1, 2], [3, 4]])])
    assert array(reply.outputs["y"]).tolist() == [[-1, -2], [-3, -4]]


def test_a_division_by_zero_fails_its_request_alone(client):
    least = -(2**31)
    for _ in range(20):
        with pytest.raises(Refused) as refused:
            client.infer("dividing", [int32("a", [1, 2, 3, 4]), int32("b", [1, 0, 1, 1])])
        assert "divide by zero" in refused.value.text, refused.value.text
    # The one quotient that does not fit: the processor traps at it, if nobody looks.
    reply = client.infer("dividing", [int32("a", [least, 7, -7, 8]), int32("b", [-1, 2, 2, 8])])
    assert array(reply.outputs["c"]).tolist() == [least, 3, -3, 1]
    assert is_right(client)


@pytest.mark.parametrize("index", [4, 100, 2**31 - 1, -5, -(2**31)])
def test_an_index_beyond_a_table_fails_its_request_alone(client, index):
    with pytest.raises(Refused) as refused:
        client.infer("gathering", [int32("at", [0, index])])
    assert "the graph fails" in refused.value.text and is_right(client)


def test_shapes_that_do_not_fit_fail_their_request_alone(client):
    for shape in ([3], [1, 5], [0, 4]):
        with pytest.raises(Refused):
            client.infer("right", [fp32("x", np.zeros(shape))])
    with pytest.raises(Refused) as refused:
        client.infer("window", [fp32("x", np.zeros([1, 2, 9, 1]))])
    assert "node 'y' (Conv2D) of the graph: a window of [3, 3] does not fit shape [1, 2, 9, 1]" in refused.value.text
    assert list(array(client.infer("window", [fp32("x", np.zeros([1, 3, 9, 1]))]).outputs["y"]).shape) == [1, 1, 7, 1]
    assert is_right(client)


def test_a_request_that_would_need_too_much_memory_is_refused(client):
    side = 20000
    with pytest.raises(Refused) as refused:
        client.infer("growing", [fp32("x", np.zeros([side, 4])), fp32("z", np.zeros([4, side]))])
    assert "run_bytes_max" in refused.value.text, refused.value.text
    assert is_right(client)


def test_many_shapes_keep_few_plans(graph_server, client):
    def resident() -> int:
        with open(f"/proc/{graph_server.pid}/statm") as file:
            return int(file.read().split()[1]) * 4096

    def infer(count: int, first: int) -> None:
        for rows in range(first, first + count):
            client.infer("right", [fp32("x", np.zeros([rows, 4]))])

    infer(200, 1)
    before = resident()
    infer(400, 201)
    assert resident() - before < 32 << 20


@pytest.mark.parametrize("name", ["turned", "turned_by_name"])
def test_inputs_go_where_they_belong_in_whatever_order_the_graph_needs_them(client, name):
    reply = client.infer(name, [int32("a", [1, 2]), int32("b", [30, 40]), int32("unused", [5])])
    assert array(reply.outputs["y"]).tolist() == [29, 38]


def test_a_long_chain_of_operations_runs(client):
    values = np.array([[1, -2, 3, -4]], np.float32)
    reply = client.infer("chain", [given("x", values)])
    assert array(reply.outputs["n1999"]).tolist() == np.abs(values).tolist()
