//! Does an operator compute new numbers, and of which type is its result?

use rten_onnx::onnx::{DataType as Onnx, NodeProto};

use super::Fact;

/// What an operator does to numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Each number of its results is one of its inputs', or the result of a comparison or choice.
    Moves,
    /// Sizes, positions and counts: small whatever the input.
    Positions,
    /// It converts to another type.
    Casts,
    /// It contains graphs.
    Graphs,
    /// It computes new numbers.
    Computes,
}

/// Operators whose results are unchanged numbers of their inputs.
#[rustfmt::skip]
const MOVES: &[&str] = &[
    "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Concat", "Split", "Slice", "Gather", "GatherND",
    "GatherElements", "Expand", "Tile", "Pad", "Where", "Flatten", "Compress", "DepthToSpace", "SpaceToDepth",
    "ReverseSequence", "Trilu", "OneHot", "ConstantOfShape", "EyeLike", "Min", "Max", "Clip", "ReduceMin",
    "ReduceMax", "Sign", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "And", "Or", "Xor", "Not",
    "IsNaN", "IsInf", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "Mod", "SequenceAt", "SequenceConstruct",
    "SequenceEmpty", "SequenceInsert", "SequenceErase", "SplitToSequence", "ConcatFromSequence", "Optional",
    "OptionalGetElement",
];

/// Operators whose results are sizes, positions or counts.
const POSITIONS: &[&str] =
    &["Shape", "Size", "NonZero", "ArgMax", "ArgMin", "NonMaxSuppression", "SequenceLength", "TopK", "Unique"];

/// Kind of the operator of this name.
pub fn kind(op: &str) -> Kind {
    match op {
        "Cast" | "CastLike" => Kind::Casts,
        "If" | "Loop" | "Scan" | "SequenceMap" => Kind::Graphs,
        op if MOVES.contains(&op) => Kind::Moves,
        op if POSITIONS.contains(&op) => Kind::Positions,
        _ => Kind::Computes,
    }
}

/// Whether the output at `index` is small whatever the inputs are. The first output of TopK and Unique has values.
pub fn gives_small(op: &str, index: usize) -> bool {
    let values_first = matches!(op, "TopK" | "Unique" | "MaxPool");
    if index == 0 && values_first { false } else { values_first || kind(op) == Kind::Positions }
}

/// The inputs that the numbers of the first output come from, for operators that move, choose or change a sign.
pub fn data_inputs(node: &NodeProto, op: &str) -> Option<Vec<usize>> {
    let all = || (0..node.input.len()).collect();
    Some(match op {
        "Identity" | "Reshape" | "Transpose" | "Squeeze" | "Unsqueeze" | "Slice" | "Gather" | "GatherND"
        | "GatherElements" | "Expand" | "Tile" | "Flatten" | "ReverseSequence" | "Trilu" | "ReduceMin"
        | "ReduceMax" | "TopK" | "Neg" | "Abs" | "Compress" => vec![0],
        "Concat" | "Min" | "Max" => all(),
        "Where" => vec![1, 2],
        _ => return None,
    })
}

/// The type of the output at `index`, if the graph does not declare it.
pub fn result_type(node: &NodeProto, op: &str, index: usize, inputs: &[Fact]) -> Option<Onnx> {
    let input = |at: usize| inputs.get(at).and_then(|fact| fact.onnx);
    let attribute = |name: &str| {
        let found = node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some(name))?;
        found.i.and_then(|number| i32::try_from(number).ok()).map(Onnx)
    };
    match op {
        "Cast" => attribute("to"),
        "CastLike" => input(1),
        "Shape" | "Size" | "NonZero" | "ArgMax" | "ArgMin" | "NonMaxSuppression" | "SequenceLength" => {
            Some(Onnx::INT64)
        }
        "TopK" | "Unique" | "MaxPool" if index > 0 => Some(Onnx::INT64),
        "Equal" | "Greater" | "Less" | "GreaterOrEqual" | "LessOrEqual" | "And" | "Or" | "Xor" | "Not" | "IsNaN"
        | "IsInf" => Some(Onnx::BOOL),
        "Where" => input(1),
        "OneHot" => input(2),
        "ConstantOfShape" => {
            let value = node.attribute.iter().find_map(|attribute| attribute.t.as_ref());
            value.map_or(Some(Onnx::FLOAT), |tensor| tensor.data_type)
        }
        "EyeLike" | "RandomNormalLike" | "RandomUniformLike" => attribute("dtype").or_else(|| input(0)),
        "RandomNormal" | "RandomUniform" => attribute("dtype").or(Some(Onnx::FLOAT)),
        "Multinomial" => attribute("dtype").or(Some(Onnx::INT32)),
        "MatMulInteger" | "ConvInteger" => Some(Onnx::INT32),
        "QuantizeLinear" => input(2).or(Some(Onnx::UINT8)),
        "DynamicQuantizeLinear" => Some(if index == 1 { Onnx::FLOAT } else { Onnx::UINT8 }),
        "DequantizeLinear" => input(1),
        "Dropout" if index > 0 => Some(Onnx::BOOL),
        "If" | "Loop" | "Scan" | "SequenceMap" => inner_type(node, op, index),
        _ => input(0),
    }
}

/// The type that an inner graph declares for its output. A Loop's first output is the condition, which is no output of
/// the Loop.
fn inner_type(node: &NodeProto, op: &str, index: usize) -> Option<Onnx> {
    let inner = node.attribute.iter().find_map(|attribute| attribute.g.as_ref())?;
    crate::graph::element_type(inner.output.get(index + usize::from(op == "Loop"))?)
}
