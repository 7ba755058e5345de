//! Do the shapes of a graph's inputs determine how long it runs?
//!
//! They do if no value that a client chooses determines how often an operation is done or how large a tensor becomes. Such values are the trip count of a loop,
//! the repeats of a Tile and the shape of an Expand. If such a value is a constant, or is made only from the shapes of inputs (Shape, then Gather, then Concat,
//! as in most exported networks), it is *fixed*: it follows from the shapes.
//!
//! An integer division that has no result, such as one by zero, takes microseconds instead of nanoseconds (`nerite_guard::arithmetic`). So the time
//! of an integer division depends on values. A Div or Mod counts as bounded by shapes only for floating-point numbers, or for fixed values.
//!
//! The lists name operators that are known to be bounded. If a graph has another operator, the answer is "unknown", and the graph always runs on a
//! worker.

use std::collections::HashSet;

use nerite_tensor::DataType;

use super::nodes::{Node, Nodes};
use super::ports::Ports;
use crate::CostBound;

/// Operators whose work and whose outputs' shapes follow from the shapes of their inputs.
#[rustfmt::skip]
const BY_SHAPES: &[&str] = &[
    "Abs", "Acos", "Acosh", "Add", "And", "ArgMax", "ArgMin", "Asin", "Asinh", "Atan", "Atanh", "AveragePool",
    "BatchNormalization", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil",
    "Celu", "Clip", "Concat", "Constant", "Conv", "ConvInteger", "ConvTranspose", "Cos", "Cosh", "CumSum", "DepthToSpace",
    "DequantizeLinear", "Det", "Dropout", "DynamicQuantizeLinear", "Einsum", "Elu", "Equal", "Erf", "Exp", "EyeLike", "Flatten",
    "Floor", "GRU", "Gather", "GatherElements", "GatherND", "Gelu", "Gemm", "GlobalAveragePool", "GlobalLpPool",
    "GlobalMaxPool", "Greater", "GreaterOrEqual", "GridSample", "GroupNormalization", "HardSigmoid", "HardSwish", "Hardmax",
    "Identity", "InstanceNormalization", "IsInf", "IsNaN", "LRN", "LSTM", "LayerNormalization", "LeakyRelu", "Less",
    "LessOrEqual", "Log", "LogSoftmax", "LpNormalization", "LpPool", "MatMul", "MatMulInteger", "Max", "MaxPool", "Mean",
    "MeanVarianceNormalization", "Min", "Mish", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "QLinearConv",
    "QLinearMatMul", "QuantizeLinear", "RMSNormalization", "RNN", "Reciprocal", "Relu", "ReverseSequence", "RotaryEmbedding",
    "Round", "ScatterElements", "ScatterND", "Selu", "Shape", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Size", "Softmax",
    "Softplus", "Softsign", "SpaceToDepth", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Transpose",
    "Where", "Xor",
];
/// Operators whose work follows from shapes if all inputs after the first are fixed. Those inputs are sizes, counts or axes. Reshape is one of them,
/// because later broadcasts depend on its shape.
#[rustfmt::skip]
const BY_SHAPES_AND_THE_REST: &[&str] = &[
    "CenterCropPad", "Expand", "OneHot", "Pad", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
    "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Reshape", "Resize", "Slice", "Split",
    "Squeeze", "Tile", "TopK", "Trilu", "Unsqueeze", "Upsample",
];
/// Operators whose work follows from shapes if all inputs are fixed. Exporters apply NonZero to a constant to count up.
const BY_FIXED_VALUES: &[&str] = &["ConstantOfShape", "NonZero", "Range"];
/// Operators whose output values follow from shapes, whatever values their inputs have.
const RETURNS_SHAPES: &[&str] = &["Shape", "Size"];

/// Operators whose work follows from shapes for floating-point numbers, and for integers if all inputs are fixed.
const BY_SHAPES_OF_FLOATS: &[&str] = &["Div", "Mod"];
/// Operators whose first output has floating-point numbers, whatever the inputs are.
#[rustfmt::skip]
const MAKES_FLOATS: &[&str] = &[
    "AveragePool", "BatchNormalization", "Ceil", "Conv", "Cos", "DequantizeLinear", "Elu", "Erf", "Exp", "Floor", "Gelu",
    "GlobalAveragePool", "HardSigmoid", "InstanceNormalization", "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax", "Reciprocal",
    "Round", "Selu", "Sigmoid", "Sin", "Softmax", "Softplus", "Softsign", "Sqrt", "Tanh",
];
/// Operators whose first output has floating-point numbers if any of the inputs has.
#[rustfmt::skip]
const KEEPS_FLOATS: &[&str] = &[
    "Abs", "Add", "Clip", "Concat", "Div", "Dropout", "Expand", "Flatten", "Gather", "Gemm", "GlobalMaxPool", "Identity", "MatMul",
    "Max", "MaxPool", "Mean", "Min", "Mod", "Mul", "Neg", "Pad", "PRelu", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Slice", "Squeeze", "Sub", "Sum", "Tile", "Transpose", "Unsqueeze",
    "Where",
];

/// What bounds the time of a run of this graph. `ports` are its inputs and outputs.
pub fn cost_bound(nodes: &Nodes, ports: &Ports) -> CostBound {
    // Elements of BYTES may have any length. How many bytes are copied depends on which elements an operator selects, and how often.
    let is_numeric = |datatype: Option<DataType>| datatype.is_some_and(|datatype| datatype != DataType::Bytes);
    if !nodes.is_complete || !ports.inputs.iter().all(|input| is_numeric(input.datatype)) {
        return CostBound::Unknown;
    }
    let mut fixed: HashSet<&str> = nodes.constants.iter().map(String::as_str).collect();
    for input in &ports.inputs {
        fixed.remove(input.name.as_str());
    }
    // An input that a node leaves out has the empty name. It counts as fixed.
    fixed.insert("");
    let is_float =
        |datatype: DataType| matches!(datatype, DataType::Fp16 | DataType::Fp32 | DataType::Fp64 | DataType::Bf16);
    let floats = ports.inputs.iter().filter(|input| input.datatype.is_some_and(is_float));
    let mut known = Known { fixed, floats: floats.map(|input| input.name.as_str()).collect() };
    if nodes.graph.iter().all(|node| follows(node, &mut known)) { CostBound::InputSizes } else { CostBound::Unknown }
}

/// What is known of tensors, which are identified by their names.
struct Known<'n> {
    /// The tensors whose values follow from shapes.
    fixed: HashSet<&'n str>,
    /// The tensors of floating-point numbers.
    floats: HashSet<&'n str>,
}

/// Whether the operator's work follows from shapes. If so, this notes what is known of its outputs.
fn follows<'n>(node: &'n Node, Known { fixed, floats }: &mut Known<'n>) -> bool {
    if !node.is_standard() || !node.inner.is_empty() {
        return false;
    }
    let op = node.op.as_str();
    let has_floats = node.inputs.iter().any(|input| floats.contains(input.as_str()));
    let free = match op {
        op if BY_SHAPES_OF_FLOATS.contains(&op) => {
            if has_floats {
                node.inputs.len()
            } else {
                0
            }
        }
        op if BY_SHAPES.contains(&op) => node.inputs.len(),
        op if BY_SHAPES_AND_THE_REST.contains(&op) => 1,
        op if BY_FIXED_VALUES.contains(&op) => 0,
        _ => return false,
    };
    let is_fixed = |input: &String| fixed.contains(input.as_str());
    if !node.inputs.iter().skip(free).all(is_fixed) {
        return false;
    }
    if MAKES_FLOATS.contains(&op) || has_floats && KEEPS_FLOATS.contains(&op) {
        floats.extend(node.outputs.first().map(String::as_str));
    }
    if RETURNS_SHAPES.contains(&op) || node.inputs.iter().all(is_fixed) {
        fixed.extend(node.outputs.iter().map(String::as_str));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::super::ports::Port;
    use super::*;

    fn node((op, inputs, outputs): &(&str, &str, &str)) -> Node {
        let names = |text: &str| text.split_whitespace().map(|name| name.replace('-', "")).collect();
        Node { op: (*op).into(), inputs: names(inputs), outputs: names(outputs), ..Node::default() }
    }

    fn graph(nodes: &[(&str, &str, &str)]) -> Nodes {
        let constants = ["c", "d"].map(String::from).into();
        Nodes { graph: nodes.iter().map(node).collect(), constants, is_complete: true, ..Nodes::default() }
    }

    fn ports(datatype: DataType) -> Ports {
        let port = |name: &str| Port::new(name, Some(datatype), None);
        Ports { inputs: vec![port("x"), port("y")], ..Ports::default() }
    }

    /// In `nodes`, `x` and `y` are inputs of the graph, `c` and `d` are constants, and `-` is an input that is left out.
    #[track_caller]
    fn check(nodes: &[(&str, &str, &str)], expected: CostBound) {
        assert_eq!(cost_bound(&graph(nodes), &ports(DataType::Fp32)), expected, "{nodes:?}");
    }

    #[test]
    fn arithmetic_follows_from_shapes() {
        use CostBound::InputSizes;
        check(&[], InputSizes);
        check(&[("Add", "x y", "z"), ("MatMul", "z c", "out")], InputSizes);
        check(&[("Constant", "", "k"), ("Conv", "x k d", "out")], InputSizes);
        check(&[("Gather", "c x", "out")], InputSizes);
    }

    #[test]
    fn a_division_of_integers_takes_as_long_as_its_values_say() {
        use CostBound::{InputSizes, Unknown};
        for op in ["Div", "Mod"] {
            for (datatype, expected) in
                [(DataType::Fp32, InputSizes), (DataType::Int32, Unknown), (DataType::Int64, Unknown)]
            {
                let bound = |nodes: &[(&str, &str, &str)]| cost_bound(&graph(nodes), &ports(datatype));
                assert_eq!(bound(&[(op, "x y", "out")]), expected, "{op} {datatype}");
                assert_eq!(bound(&[(op, "x c", "out")]), expected, "the constant may be -1");
                assert_eq!(bound(&[("Add", "x c", "z"), (op, "c z", "out")]), expected, "{op} {datatype}");
            }
            // The first two operands are integers made from values, the third is made from shapes, the last is floating-point.
            check(&[("Cast", "x", "z"), (op, "z c", "out")], Unknown);
            check(&[("ArgMax", "x", "z"), (op, "z c", "out")], Unknown);
            check(&[("Shape", "x", "z"), ("Gather", "z c", "w"), (op, "w c", "out")], InputSizes);
            check(&[("Cast", "x", "z"), ("Sqrt", "z", "w"), (op, "z w", "out")], InputSizes);
        }
    }

    #[test]
    fn loops_branches_and_what_nobody_knows_do_not() {
        use CostBound::Unknown;
        for op in ["Loop", "If", "Scan", "SequenceMap", "Unique", "NonMaxSuppression", "Compress", "SomethingNew"] {
            check(&[(op, "x", "out")], Unknown);
            check(&[("Relu", "x", "z"), (op, "z", "out"), ("Relu", "out", "end")], Unknown);
        }
        // The trip count is not examined, even if it is fixed.
        check(&[("Loop", "c", "out")], Unknown);
    }

    #[test]
    fn sizes_must_not_come_from_a_clients_values() {
        use CostBound::{InputSizes, Unknown};
        for op in ["Tile", "Expand", "Reshape", "Pad", "Slice", "OneHot", "TopK", "Resize", "ReduceSum", "Unsqueeze"] {
            check(&[(op, "x y", "out")], Unknown);
            check(&[(op, "x c", "out")], InputSizes);
            check(&[("Relu", "y", "z"), (op, "x z", "out")], Unknown);
            check(&[("Shape", "y", "z"), (op, "x z", "out")], InputSizes);
        }
        for op in ["Range", "ConstantOfShape", "NonZero"] {
            check(&[(op, "x", "out")], Unknown);
            check(&[(op, "c c d", "out")], InputSizes);
        }
        check(&[("Resize", "x - - d", "out")], InputSizes);
        check(&[("Resize", "x - - y", "out")], Unknown);
        check(&[("Tile", "x never_made", "out")], Unknown);
    }

    #[test]
    fn what_is_made_of_shapes_and_constants_is_fixed() {
        use CostBound::{InputSizes, Unknown};
        let sizes = [("Shape", "x", "s"), ("Gather", "s c", "n"), ("Mul", "n d", "m"), ("Concat", "m c", "to")];
        check(&[&sizes[..], &[("Reshape", "x to", "out")]].concat(), InputSizes);
        let mixed = [("Shape", "x", "s"), ("Gather", "s y", "n"), ("Reshape", "x n", "out")];
        check(&mixed, Unknown);
        let counted = [("Shape", "x", "s"), ("ConstantOfShape", "s", "ones"), ("NonZero", "ones", "at")];
        check(&counted, InputSizes);
    }

    #[test]
    fn an_input_is_not_fixed_though_a_constant_has_its_name() {
        let mut named = graph(&[("Tile", "x y", "out")]);
        named.constants.insert("y".into());
        assert_eq!(cost_bound(&named, &ports(DataType::Fp32)), CostBound::Unknown);
    }

    #[test]
    fn strings_foreign_operators_functions_and_unread_nodes_are_unknown() {
        let plain = [("Identity", "x", "out")];
        let fp32 = ports(DataType::Fp32);
        assert_eq!(cost_bound(&graph(&plain), &ports(DataType::Bytes)), CostBound::Unknown);
        assert_eq!(cost_bound(&Nodes { is_complete: false, ..graph(&plain) }, &fp32), CostBound::Unknown);
        let mut foreign = graph(&plain);
        foreign.graph[0].domain = "com.microsoft".into();
        assert_eq!(cost_bound(&foreign, &fp32), CostBound::Unknown);
        let mut inner = graph(&plain);
        inner.graph[0].inner.push(node(&plain[0]));
        assert_eq!(cost_bound(&inner, &fp32), CostBound::Unknown);
    }

    #[test]
    fn models_in_files_are_judged() {
        let models = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/models");
        let of = |name: &str| {
            Nodes::read(std::fs::File::open(models.join(name))?).map(|nodes| cost_bound(&nodes, &ports(DataType::Fp32)))
        };
        assert!(of("outer.onnx").is_ok_and(|bound| bound == CostBound::InputSizes));
        assert!(of("find.onnx").is_ok_and(|bound| bound == CostBound::Unknown));
    }
}
