"""What are the ONNX graphs of the generated models?

Each function returns one checked ModelProto, built by hand so that no training framework is needed and the bytes do
not change from run to run. Weights come from one seeded generator.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SEED = 11
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


def dense(rng, rows: int, columns: int) -> np.ndarray:
    return (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)


class Encoder:
    """Nodes and weights of a small transformer encoder while it is being put together."""

    def __init__(self, hidden: int, heads: int, words: int, positions: int):
        self.hidden, self.heads = hidden, heads
        self.rng = np.random.default_rng(SEED)
        self.nodes, self.weights = [], {
            "words": dense(self.rng, words, hidden),
            "positions": dense(self.rng, positions, hidden),
            "one": np.float32(1.0),
            "half": np.float32(0.5),
            "root_two": np.float32(np.sqrt(2.0)),
            "minus_many": np.float32(-10000.0),
            "scale": np.float32(1 / np.sqrt(hidden / heads)),
            "split_heads": np.array([0, 0, heads, hidden // heads], np.int64),
            "join_heads": np.array([0, 0, hidden], np.int64),
            "index_one": np.array(1, np.int64),
            "index_zero": np.array(0, np.int64),
            "step": np.array(1, np.int64),
            "axes_1_2": np.array([1, 2], np.int64),
        }

    def add(self, operator: str, inputs: list[str], output: str, **attributes) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def linear(self, source: str, name: str, rows: int, columns: int) -> str:
        self.weights[f"{name}_w"] = dense(self.rng, rows, columns)
        self.weights[f"{name}_b"] = (self.rng.standard_normal(columns) * 0.02).astype(np.float32)
        self.add("MatMul", [source, f"{name}_w"], f"{name}_m")
        return self.add("Add", [f"{name}_m", f"{name}_b"], f"{name}_out")

    def norm(self, source: str, name: str) -> str:
        self.weights[f"{name}_g"] = np.ones(self.hidden, np.float32)
        self.weights[f"{name}_c"] = np.zeros(self.hidden, np.float32)
        return self.add("LayerNormalization", [source, f"{name}_g", f"{name}_c"], f"{name}_out", axis=-1, epsilon=1e-12)

    def gelu(self, source: str, name: str) -> str:
        self.add("Div", [source, "root_two"], f"{name}_d")
        self.add("Erf", [f"{name}_d"], f"{name}_e")
        self.add("Add", [f"{name}_e", "one"], f"{name}_p")
        self.add("Mul", [source, f"{name}_p"], f"{name}_x")
        return self.add("Mul", [f"{name}_x", "half"], f"{name}_out")

    def attention(self, source: str, mask: str, name: str) -> str:
        for part in "qkv":
            flat = self.linear(source, f"{name}_{part}", self.hidden, self.hidden)
            self.add("Reshape", [flat, "split_heads"], f"{name}_{part}_4d")
            order = [0, 2, 3, 1] if part == "k" else [0, 2, 1, 3]
            self.add("Transpose", [f"{name}_{part}_4d"], f"{name}_{part}_t", perm=order)
        self.add("MatMul", [f"{name}_q_t", f"{name}_k_t"], f"{name}_qk")
        self.add("Mul", [f"{name}_qk", "scale"], f"{name}_scaled")
        self.add("Add", [f"{name}_scaled", mask], f"{name}_masked")
        self.add("Softmax", [f"{name}_masked"], f"{name}_p", axis=-1)
        self.add("MatMul", [f"{name}_p", f"{name}_v_t"], f"{name}_pv")
        self.add("Transpose", [f"{name}_pv"], f"{name}_pvt", perm=[0, 2, 1, 3])
        self.add("Reshape", [f"{name}_pvt", "join_heads"], f"{name}_joined")
        return self.linear(f"{name}_joined", f"{name}_o", self.hidden, self.hidden)

    def layer(self, source: str, mask: str, name: str) -> str:
        attended = self.attention(source, mask, name)
        self.add("Add", [source, attended], f"{name}_r1")
        first = self.norm(f"{name}_r1", f"{name}_n1")
        wide = self.gelu(self.linear(first, f"{name}_up", self.hidden, 4 * self.hidden), f"{name}_act")
        self.add("Add", [first, self.linear(wide, f"{name}_down", 4 * self.hidden, self.hidden)], f"{name}_r2")
        return self.norm(f"{name}_r2", f"{name}_n2")


def tiny_bert(layers: int = 2, hidden: int = 32, heads: int = 2, words: int = 100) -> onnx.ModelProto:
    """A BERT-like encoder: ids and mask in, the last hidden state and the pooled first token out."""
    net = Encoder(hidden, heads, words, positions=64)
    net.add("Gather", ["words", "input_ids"], "embedded")
    net.add("Shape", ["input_ids"], "ids_shape")
    net.add("Gather", ["ids_shape", "index_one"], "length")
    net.add("Range", ["index_zero", "length", "step"], "places")
    net.add("Gather", ["positions", "places"], "placed")
    net.add("Add", ["embedded", "placed"], "summed")
    net.add("Cast", ["attention_mask"], "mask_f", to=TensorProto.FLOAT)
    net.add("Sub", ["one", "mask_f"], "mask_inverse")
    net.add("Mul", ["mask_inverse", "minus_many"], "mask_2d")
    net.add("Unsqueeze", ["mask_2d", "axes_1_2"], "mask")
    state = net.norm("summed", "n0")
    for number in range(layers):
        state = net.layer(state, "mask", f"l{number}")
    net.add("Identity", [state], "last_hidden_state")
    net.add("Gather", [state, "index_zero"], "first", axis=1)
    net.add("Tanh", [net.linear("first", "pool", hidden, hidden)], "pooler_output")
    return finish(
        "tiny_bert",
        net.nodes,
        [value("input_ids", "INT64", ["batch", "length"]), value("attention_mask", "INT64", ["batch", "length"])],
        [
            value("last_hidden_state", "FP32", ["batch", "length", hidden]),
            value("pooler_output", "FP32", ["batch", hidden]),
        ],
        net.weights,
    )


def recurrent(cell: str, features: int = 4, hidden: int = 8) -> onnx.ModelProto:
    """An LSTM or GRU over [batch, time, features]; every step's state out, and the last one."""
    gates = {"LSTM": 4, "GRU": 3}[cell]
    rng = np.random.default_rng(SEED)
    weights = {
        "w": (rng.standard_normal((1, gates * hidden, features)) * 0.3).astype(np.float32),
        "r": (rng.standard_normal((1, gates * hidden, hidden)) * 0.3).astype(np.float32),
        "b": (rng.standard_normal((1, 2 * gates * hidden)) * 0.1).astype(np.float32),
        "axis_1": np.array([1], np.int64),
        "axis_0": np.array([0], np.int64),
    }
    # The form that PyTorch exports.
    more = {"linear_before_reset": 1} if cell == "GRU" else {}
    nodes = [
        helper.make_node("Transpose", ["INPUT0"], ["by_time"], perm=[1, 0, 2]),
        helper.make_node(cell, ["by_time", "w", "r", "b"], ["states", "last"], hidden_size=hidden, **more),
        helper.make_node("Squeeze", ["states", "axis_1"], ["one_way"]),
        helper.make_node("Transpose", ["one_way"], ["OUTPUT0"], perm=[1, 0, 2]),
        helper.make_node("Squeeze", ["last", "axis_0"], ["OUTPUT1"]),
    ]
    return finish(
        f"tiny_{cell.lower()}",
        nodes,
        [value("INPUT0", "FP32", ["batch", "time", features])],
        [value("OUTPUT0", "FP32", ["batch", "time", hidden]), value("OUTPUT1", "FP32", ["batch", hidden])],
        weights,
    )
