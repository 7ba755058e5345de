"""What are the ONNX graphs of the generated models?

Each function returns one checked ModelProto, built by hand so that no training framework is needed and the bytes do
not change from run to run.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 17, 8

ONNX_TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
    "BF16": TensorProto.BFLOAT16,
}


def value(name: str, datatype: str, shape) -> onnx.ValueInfoProto:
    """A graph input or output; `shape` None leaves even the rank open."""
    return helper.make_tensor_value_info(name, ONNX_TYPES[datatype], shape)


def finish(name: str, nodes, inputs, outputs, weights: dict[str, np.ndarray] | None = None, check=True):
    """Puts a graph together and has the checker look at it."""
    initializers = [numpy_helper.from_array(np.asarray(array), key) for key, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, name, inputs, outputs, initializers)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="nerite-tests"
    )
    if check:
        onnx.checker.check_model(model, full_check=True)
    return model


def identity(datatype: str, shape) -> onnx.ModelProto:
    return finish(
        "identity",
        [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])],
        [value("INPUT0", datatype, shape)],
        [value("OUTPUT0", datatype, shape)],
    )


def add_sub(datatype: str, shape) -> onnx.ModelProto:
    return finish(
        "add_sub",
        [
            helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
            helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
        ],
        [value(f"INPUT{i}", datatype, shape) for i in range(2)],
        [value(f"OUTPUT{i}", datatype, shape) for i in range(2)],
    )


def scalar() -> onnx.ModelProto:
    """Rank 0 in, rank 0 out."""
    return finish(
        "scalar",
        [helper.make_node("Neg", ["INPUT0"], ["OUTPUT0"])],
        [value("INPUT0", "FP32", [])],
        [value("OUTPUT0", "FP32", [])],
    )


def empty_output() -> onnx.ModelProto:
    """OUTPUT0 has no element whatever comes in; OUTPUT1 is the input."""
    weights = {"from": np.array([0], np.int64), "to": np.array([0], np.int64)}
    return finish(
        "empty_output",
        [
            helper.make_node("Slice", ["INPUT0", "from", "to"], ["OUTPUT0"]),
            helper.make_node("Identity", ["INPUT0"], ["OUTPUT1"]),
        ],
        [value("INPUT0", "FP32", ["n"])],
        [value("OUTPUT0", "FP32", ["none"]), value("OUTPUT1", "FP32", ["n"])],
        weights,
    )


def three_outputs() -> onnx.ModelProto:
    """A batch of nine columns split in three, each of its own type."""
    return finish(
        "three_outputs",
        [
            helper.make_node("Split", ["INPUT0"], ["a", "b", "c"], axis=1),
            helper.make_node("Identity", ["a"], ["FLOATS"]),
            helper.make_node("Cast", ["b"], ["INTS"], to=TensorProto.INT32),
            helper.make_node("ReduceSum", ["c", "axis"], ["SUM"], keepdims=1),
        ],
        [value("INPUT0", "FP32", ["batch", 9])],
        [
            value("FLOATS", "FP32", ["batch", 3]),
            value("INTS", "INT32", ["batch", 3]),
            value("SUM", "FP32", ["batch", 1]),
        ],
        {"axis": np.array([1], np.int64)},
    )


def dynamic_transpose() -> onnx.ModelProto:
    return finish(
        "dynamic_transpose",
        [helper.make_node("Transpose", ["INPUT0"], ["OUTPUT0"], perm=[1, 0])],
        [value("INPUT0", "FP32", ["rows", "columns"])],
        [value("OUTPUT0", "FP32", ["columns", "rows"])],
    )


def wrong_rank() -> onnx.ModelProto:
    """The graph declares a matrix and makes a vector; nothing can know before it runs."""
    return finish(
        "wrong_rank",
        [helper.make_node("Reshape", ["INPUT0", "SHAPE"], ["OUTPUT0"])],
        [value("INPUT0", "FP32", ["n"]), value("SHAPE", "INT64", ["r"])],
        [value("OUTPUT0", "FP32", ["a", "b"])],
        check=False,
    )


def counted_loop() -> onnx.ModelProto:
    """Adds one to INPUT0 as many times as TRIPS says: the client chooses how long that takes."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Add", ["had", "one"], ["has"])],
        "body",
        [value("round", "INT64", []), value("go", "BOOL", []), value("had", "FP32", ["n"])],
        [value("go_on", "BOOL", []), value("has", "FP32", ["n"])],
    )
    weights = {"axis": np.array([0], np.int64), "always": np.array(True), "one": np.array([1], np.float32)}
    return finish(
        "counted_loop",
        [
            helper.make_node("Squeeze", ["TRIPS", "axis"], ["trips"]),
            helper.make_node("Loop", ["trips", "always", "INPUT0"], ["OUTPUT0"], body=body),
        ],
        [value("TRIPS", "INT64", [1]), value("INPUT0", "FP32", ["n"])],
        [value("OUTPUT0", "FP32", ["n"])],
        weights,
    )


def product_sum() -> onnx.ModelProto:
    """The sum of a matrix product of which both sides, and all three sizes, are the client's."""
    return finish(
        "product_sum",
        [
            helper.make_node("MatMul", ["LEFT", "RIGHT"], ["product"]),
            helper.make_node("ReduceSum", ["product", "axes"], ["OUTPUT0"], keepdims=1),
        ],
        [value("LEFT", "FP32", ["m", "k"]), value("RIGHT", "FP32", ["k", "n"])],
        [value("OUTPUT0", "FP32", [1, 1])],
        {"axes": np.array([0, 1], np.int64)},
    )
