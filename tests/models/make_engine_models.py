"""Which graphs do the tests of the two ONNX runtimes load?

Writes them to crates/onnx/tests/models, a few hundred bytes each. Run with the packages `onnx` and `numpy`:

    python tests/models/make_engine_models.py
"""

from pathlib import Path

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save

FOLDER = Path(__file__).resolve().parents[2] / "crates/onnx/tests/models"

FP32, FP64, FP16 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16
INT32, INT64, BOOL, STRING = TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING
NAMES = {
    "BOOL": BOOL, "UINT8": TensorProto.UINT8, "UINT16": TensorProto.UINT16, "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64, "INT8": TensorProto.INT8, "INT16": TensorProto.INT16, "INT32": INT32, "INT64": INT64,
    "FP16": FP16, "FP32": FP32, "FP64": FP64, "BYTES": STRING, "BF16": TensorProto.BFLOAT16,
}


def value(name, datatype, *dims):
    return helper.make_tensor_value_info(name, datatype, list(dims))


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs.split(), outputs.split(), name=f"{op.lower()}_{outputs.replace(' ', '_')}", **attributes)


def branch(name, datatype):
    """A graph inside an operator: twice the outer x, or x itself."""
    op = node("Add", "x x", name) if name == "wide" else node("Identity", "x", name)
    return helper.make_graph([op], name, [], [value(name, datatype, "n")])


def constant(name, values, datatype):
    return numpy_helper.from_array(np.array(values, dtype=datatype), name)


def write(name, nodes, inputs, outputs, constants=(), check=True):
    graph = helper.make_graph(nodes, name, inputs, outputs, list(constants))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="nerite", ir_version=8)
    if check:
        checker.check_model(model)
    FOLDER.mkdir(parents=True, exist_ok=True)
    save(model, FOLDER / f"{name}.onnx")


def shapes():
    """Outputs whose shape is told beforehand, is not, or is told wrong."""
    write("pick", [node("Gather", "table rows", "picked", axis=0)],
          [value("rows", INT32, "n", 1)], [value("picked", FP32, "n", 1, 2)],
          [constant("table", [[1, 2], [3, 4], [5, 6], [7, 8]], np.float32)])
    write("find", [node("NonZero", "x", "found")], [value("x", FP32, "n")], [value("found", INT64, 1, "k")])
    write("misdeclared", [node("Reshape", "x shape", "y")],
          [value("x", FP32, "n"), value("shape", INT64, "rank")], [value("y", FP32, "n", 2)])
    write("passed_through", [node("Neg", "x", "y")], [value("x", FP32, "n")], [value("x", FP32, "n"), value("y", FP32, "n")])
    write("constant", [node("Neg", "x", "y")], [value("x", FP32, "n")], [value("y", FP32, "n"), value("c", FP32, 3)],
          [constant("c", [1, 2, 3], np.float32)])
    # The initializers are inputs as well: a request may replace them.
    write("replaceable", [node("Mul", "x w", "v"), node("Div", "a b", "q")],
          [value("x", FP32, "n"), value("a", INT32, "n"), value("w", FP32, 1), value("b", INT32, 1)],
          [value("v", FP32, "n"), value("q", INT32, "n")],
          [constant("w", [2], np.float32), constant("b", [3], np.int32)])
    write("replaceable_long", [node("Add", "x w", "y")], [value("x", INT64, "n"), value("w", INT64, 1)], [value("y", INT64, "n")],
          [constant("w", [1000], np.int64)])
    # As many rounds as a request says: one that goes on for hours must end with its client.
    body = helper.make_graph(
        [node("Identity", "go", "on"), node("Add", "sum x", "next")], "round",
        [value("i", INT64), value("go", BOOL), value("sum", FP32, "n")], [value("on", BOOL), value("next", FP32, "n")])
    write("rounds", [helper.make_node("Loop", ["rounds", "", "x"], ["y"], name="loop_y", body=body)],
          [value("x", FP32, "n"), value("rounds", INT64)], [value("y", FP32, "n")])
    nested_rounds()
    several_rounds()
    unusual_rounds()
    write("scalar", [node("Neg", "x", "y")], [value("x", FP32)], [value("y", FP32)])


def nested_rounds():
    """A loop in a loop, a list of what the rounds made, constants and values of the outer graph, and a loop in a branch."""
    twice = helper.make_graph(
        [node("Identity", "g", "g_on"), node("Add", "s s", "s_next")], "twice",
        [value("j", INT64), value("g", BOOL), value("s", FP32, "n")], [value("g_on", BOOL), value("s_next", FP32, "n")])
    body = helper.make_graph(
        [helper.make_node("Loop", ["two", "go", "sum"], ["doubled"], name="inner", body=twice), node("Add", "doubled x", "plus"),
         node("Mul", "plus one", "next"), node("Identity", "next", "shown"), node("Identity", "go", "on")], "round",
        [value("i", INT64), value("go", BOOL), value("sum", FP32, "n")],
        [value("on", BOOL), value("next", FP32, "n"), value("shown", FP32, "n")])
    add = helper.make_graph(
        [node("Identity", "h", "h_on"), node("Add", "t one", "t_next")], "add",
        [value("k", INT64), value("h", BOOL), value("t", FP32, "n")], [value("h_on", BOOL), value("t_next", FP32, "n")])
    more = helper.make_graph([helper.make_node("Loop", ["rounds", "", "last"], ["more"], name="loop_more", body=add)], "more_rounds",
                             [], [value("more", FP32, "n")])
    same = helper.make_graph([node("Identity", "last", "same")], "same_rounds", [], [value("same", FP32, "n")])
    write("nested_rounds",
          [node("Add", "x one", "first"),
           helper.make_node("Loop", ["rounds", "", "first"], ["last", "list"], name="outer", body=body),
           helper.make_node("If", ["pick"], ["chosen"], name="if_chosen", then_branch=more, else_branch=same),
           node("Neg", "chosen", "y")],
          [value("x", FP32, "n"), value("rounds", INT64), value("pick", BOOL)], [value("y", FP32, "n"), value("list", FP32, "r", "n")],
          [constant("one", [1], np.float32), constant("two", 2, np.int64)])


def adding(name, addend, constants=()):
    """The body of a loop that adds to the value that its rounds pass on."""
    return helper.make_graph(
        [node("Identity", f"{name}_go", f"{name}_on"), node("Add", f"{name}_sum {addend}", f"{name}_next")], name,
        [value(f"{name}_i", INT64), value(f"{name}_go", BOOL), value(f"{name}_sum", FP32, "n")],
        [value(f"{name}_on", BOOL), value(f"{name}_next", FP32, "n")], list(constants))


def loop(inputs, output, body):
    return helper.make_node("Loop", inputs, [output], name=f"loop_{output}", body=body)


def several_rounds():
    """Several loops and results, of which a request may want some. Loops that share a constant, which is a result as well."""
    inputs = [value("x", FP32, "n"), value("rounds", INT64)]
    listing = helper.make_graph([node("Identity", "go", "on"), node("Neg", "x", "shown")], "listing",
                                [value("i", INT64), value("go", BOOL)], [value("on", BOOL), value("shown", FP32, "n")])
    write("chosen_rounds",
          [loop(["rounds", "", "x"], "y", adding("one", "x")), loop(["rounds", ""], "list", listing), node("Abs", "x", "beside"),
           node("Neg", "list", "after")],
          inputs, [value("y", FP32, "n"), value("list", FP32, "r", "n"), value("beside", FP32, "n"), value("after", FP32, "r", "n")])
    write("shared_rounds",
          [loop(["rounds", "", "w"], "a", adding("one", "w")), loop(["rounds", "", "a"], "b", adding("two", "w")),
           node("Sum", "b w x", "y")],
          [value("x", FP32, 300), value("rounds", INT64)], [value("y", FP32, 300), value("w", FP32, 300)],
          [constant("w", np.arange(300), np.float32)])
    write("equal_rounds", [loop(["rounds", "", "x"], "y", adding("one", "x"))], inputs,
          [value("y", FP32, "n"), value("three", INT64, 1), value("drei", INT64, 1)],
          [constant("three", [3], np.int64), constant("drei", [3], np.int64)])


def unusual_rounds():
    """A name that the embedded engine's cut would make, a name with two meanings, and a loop after what reads its result."""
    inputs, outputs = [value("x", FP32, "n"), value("rounds", INT64)], [value("y", FP32, "n")]
    write("named_rounds",
          [node("Neg", "x", "c/value"), loop(["rounds", "", "c"], "s", adding("one", "x")), node("Add", "s c/value", "y")],
          inputs, outputs, [constant("c", [10, 20], np.float32)])
    write("hiding_rounds",
          [loop(["rounds", "", "x"], "s", adding("one", "c", [constant("c", [100, 100], np.float32)])), node("Add", "s c", "y")],
          inputs, outputs, [constant("c", [1, 1], np.float32)], check=False)
    write("disordered_rounds", [node("Neg", "s", "y"), loop(["rounds", "", "x"], "s", adding("one", "x"))], inputs, outputs,
          check=False)


def types():
    """Every datatype of the protocol, unchanged."""
    for name, number in NAMES.items():
        write(f"echo_{name.lower()}", [node("Identity", "x", "y")], [value("x", number, "n")], [value("y", number, "n")])
    write("echo_rows_bytes", [node("Identity", "x", "y")], [value("x", STRING, "n", 2)], [value("y", STRING, "n", 2)])
    write("not", [node("Not", "x", "y")], [value("x", BOOL, "n")], [value("y", BOOL, "n")])


def narrow():
    """What an engine with 32-bit integers and floats computes rightly, and what it would falsify."""
    write("int64_pick", [node("Gather", "table rows", "picked", axis=0)],
          [value("rows", INT64, "n")], [value("picked", FP32, "n")], [constant("table", [1, 2, 3, 4], np.float32)])
    write("int64_add", [node("Add", "a b", "sum")],
          [value("a", INT64, "n"), value("b", INT64, "n")], [value("sum", INT64, "n")])
    write("int64_cumsum", [node("CumSum", "x axis", "y")], [value("x", INT64, "n")], [value("y", INT64, "n")],
          [constant("axis", 0, np.int64)])
    write("int64_power", [node("Pow", "x x", "y")], [value("x", INT64, "n")], [value("y", INT64, "n")])
    write("int64_constant", [node("Equal", "x big", "same")], [value("x", INT64, "n")], [value("same", BOOL, "n")],
          [constant("big", [1 << 40], np.int64)])
    write("to_the_end", [node("Slice", "x from to", "y")], [value("x", FP32, "n")], [value("y", FP32, "m")],
          [constant("from", [1], np.int64), constant("to", [np.iinfo(np.int64).max], np.int64)])
    write("shape_sums",
          [node("Shape", "x", "shape"), node("Gather", "shape first", "n", axis=0), node("Mul", "n two", "twice"),
           node("Concat", "twice minus", "wanted", axis=0), node("Reshape", "x wanted", "y")],
          [value("x", FP32, "n", 4)], [value("y", FP32, "m", 2)],
          [constant("first", [0], np.int64), constant("two", [2], np.int64), constant("minus", [-1], np.int64)])
    write("float_to_int64", [node("Cast", "x", "y", to=INT64)], [value("x", FP32, "n")], [value("y", INT64, "n")])
    write("float_to_bool", [node("Cast", "x", "y", to=BOOL)], [value("x", FP32, "n")], [value("y", BOOL, "n")])
    write("fp64_add", [node("Add", "a b", "sum")],
          [value("a", FP64, "n"), value("b", FP64, "n")], [value("sum", FP64, "n")])
    write("fp64_constant", [node("Concat", "x tenth", "y", axis=0)], [value("x", FP64, "n")], [value("y", FP64, "m")],
          [constant("tenth", [0.1], np.float64)])
    write("through_fp16", [node("Cast", "x", "half", to=FP16), node("Identity", "half", "again"),
                           node("Cast", "again", "y", to=FP32)], [value("x", FP32, "n")], [value("y", FP32, "n")])
    write("half_weights", [node("Cast", "w", "wide", to=FP32), node("Add", "x wide", "y")],
          [value("x", FP32, "n")], [value("y", FP32, "n")], [constant("w", [0.5], np.float16)])
    write("mask_positions", [node("Not", "x", "kept"), node("Cast", "kept", "ones", to=INT64),
                             node("CumSum", "ones axis", "y")], [value("x", BOOL, "n")], [value("y", INT64, "n")],
          [constant("axis", 0, np.int64)])
    write("topk_values", [node("TopK", "x k", "top at"), node("Add", "at at", "y")],
          [value("x", INT64, "n")], [value("top", INT64, "k"), value("y", INT64, "k")], [constant("k", [2], np.int64)])
    write("topk_sums", [node("TopK", "x k", "top at"), node("Add", "top top", "y")],
          [value("x", INT64, "n")], [value("y", INT64, "k")], [constant("k", [2], np.int64)])
    write("sign", [node("Sign", "x", "y")], [value("x", FP32, "n")], [value("y", FP32, "n")])
    write("chosen", [node("If", "which", "y", then_branch=branch("wide", INT64), else_branch=branch("same", INT64))],
          [value("which", BOOL), value("x", INT64, "n")], [value("y", INT64, "n")])
    write("first_of_equals", [node("ArgMax", "x", "top", axis=1, keepdims=0), node("ArgMin", "x", "y", axis=1)],
          [value("x", FP32, "n", 4)], [value("top", INT64, "n"), value("y", INT64, "n", 1)])
    write("last_of_equals", [node("ArgMax", "x", "y", axis=1, keepdims=0, select_last_index=1)],
          [value("x", FP32, "n", 4)], [value("y", INT64, "n")])
    write("times_vector", [node("MatMul", "x v", "y")], [value("x", FP32, "n", 2, 2)], [value("y", FP32, "n", 2)],
          [constant("v", [1, 2], np.float32)])
    write("windows", [node("Conv", "x w", "sums"), node("MaxPool", "sums", "y", kernel_shape=[1, 2])],
          [value("x", FP32, "n", 1, 2, 4)], [value("y", FP32, "n", 1, 1, 2)], [constant("w", [[[[1, 1], [1, 1]]]], np.float32)])
    write("outer", [node("Unsqueeze", "x axis", "column"), node("Mul", "column x", "product"), node("ReduceSum", "product", "y", keepdims=0)],
          [value("x", FP32, "n")], [value("y", FP32)], [constant("axis", [1], np.int64)])
    write("lacking", [node("Det", "x", "y")], [value("x", FP32, 2, 2)], [value("y", FP32)])
    # No loop, and as much to compute as a request says.
    steps = [f"p{at}" for at in range(200)]
    write("powers", [node("MatMul", f"{before} x", after) for before, after in zip(["x", *steps], [*steps, "y"])],
          [value("x", FP32, "n", "n")], [value("y", FP32, "n", "n")])
    write("products", [node("MatMul", "x x", "y")], [value("x", FP32, "count", "n", "n")], [value("y", FP32, "count", "n", "n")])


def divided():
    """Integers of a request that are divided, which has no result for some, and what is not survived without elements."""
    for name, op in (("quotients", "Div"), ("remainders", "Mod")):
        write(name, [node(op, "a b", "y")], [value("a", INT32, "n", 1), value("b", INT32, "n", 1)], [value("y", INT32, "n", 1)])
    inside = helper.make_graph([node("Div", "a b", "inner")], "divides", [], [value("inner", INT32, "n", 1)])
    other = helper.make_graph([node("Identity", "a", "same")], "does_not", [], [value("same", INT32, "n", 1)])
    write("quotients_inside", [node("If", "which", "y", then_branch=inside, else_branch=other)],
          [value("which", BOOL), value("a", INT32, "n", 1), value("b", INT32, "n", 1)], [value("y", INT32, "n", 1)])
    write("constant_quotient", [node("Div", "c d", "q"), node("Add", "x q", "y")], [value("x", INT32, "n")], [value("y", INT32, "n")],
          [constant("c", [np.iinfo(np.int32).min], np.int32), constant("d", [-1], np.int32)])
    write("distinct", [node("Unique", "x", "y", axis=1)], [value("x", FP32, 2, "n")], [value("y", FP32, 2, "m")])


if __name__ == "__main__":
    shapes()
    types()
    narrow()
    divided()
