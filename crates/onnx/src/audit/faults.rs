//! Which operators does this version of the engine compute wrongly, or lack without an error when it loads them?
//!
//! They were found by ONNX's own operator tests (`cargo run -p nerite-onnx --example onnx_oracle`) and by comparison
//! with ONNX Runtime on whole models. Repeat both with every new version.

use rten_onnx::onnx::{AttributeProto, DataType as Onnx, NodeProto};

/// Since this version of the operators, Softmax works on one axis. Before, it took all axes from the given one on together, with 1 as the default
/// axis. The engine knows only the newer rule.
const SOFTMAX_ONE_AXIS: i64 = 13;

/// What must be known to check an operator, beside the operator itself.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    /// Version of the standard operators that the model is written in.
    pub opset: i64,
    /// Type of the first input.
    pub input: Option<Onnx>,
    /// The number of dimensions of the first output, if the graph declares them.
    pub rank: Option<usize>,
    /// The number of dimensions of the second input, if the graph declares them.
    pub second_rank: Option<usize>,
}

/// What is wrong with this operator's results, if anything is.
pub fn fault(node: &NodeProto, op: &str, known: Circumstances) -> Option<&'static str> {
    let integers = known.input == Some(Onnx::INT32) || known.input == Some(Onnx::INT64);
    match op {
        "Sign" if !integers => Some("would be 1 for zero in the engine"),
        "Resize" if text(node, "mode") == Some("cubic") => {
            Some("would interpolate linearly in the engine, not cubically")
        }
        "NonMaxSuppression" => Some("would measure overlap otherwise in the engine, and not for each class"),
        "SequenceInsert" if node.input.len() > 2 => Some("would insert elsewhere in the engine"),
        "Softmax" | "LogSoftmax" if known.opset < SOFTMAX_ONE_AXIS && !is_last_axis(node, known.rank) => {
            Some("would work on another axis in the engine, which knows it only as it is since opset 13")
        }
        // The engine is right for a matrix and a vector. It is wrong for more dimensions. If their number is not known, the operator is refused.
        "MatMul" if known.second_rank == Some(1) && known.rank.is_none_or(|rank| rank > 1) => {
            Some("multiplies by a vector, whose dimension the engine would keep")
        }
        "ReduceMax" | "ReduceMin" if known.input == Some(Onnx::BOOL) => {
            Some("reduces truth values, which the engine would take for numbers")
        }
        "GRU" if number(node, "linear_before_reset") != Some(1) => {
            Some("has linear_before_reset = 0, which the engine does not support")
        }
        "AveragePool" | "Conv" | "ConvInteger" | "ConvTranspose" | "MaxPool"
            if text(node, "auto_pad") == Some("SAME_LOWER") && !pads_evenly(node) =>
        {
            Some("has auto_pad = SAME_LOWER, which the engine would take for SAME_UPPER")
        }
        "AveragePool" | "Conv" | "ConvInteger" | "ConvTranspose" | "MaxPool"
            if attribute(node, "kernel_shape").is_some_and(|shape| shape.ints.len() > 2) =>
        {
            Some("has windows of more than two dimensions, which the engine does not support")
        }
        "ConvInteger" if attribute(node, "pads").is_some_and(|pads| pads.ints.iter().any(|pad| *pad != 0)) => {
            Some("has pads, which the engine fills with 0 where the zero point belongs")
        }
        "MaxPool" if node.output.get(1).is_some_and(|name| !name.is_empty()) => {
            Some("has the output Indices, which the engine does not support")
        }
        _ => None,
    }
}

/// Whether the padding is equal on both sides, whatever the input's size: windows of an odd size that move by one.
fn pads_evenly(node: &NodeProto) -> bool {
    let all =
        |name, wanted: fn(i64) -> bool| attribute(node, name).map(|found| found.ints.iter().all(|one| wanted(*one)));
    all("kernel_shape", |size| size % 2 == 1) == Some(true) && all("strides", |stride| stride == 1).unwrap_or(true)
}

/// Whether the older rule gives the same result, because the axis is the last one.
fn is_last_axis(node: &NodeProto, rank: Option<usize>) -> bool {
    match (number(node, "axis"), rank) {
        (Some(-1), _) => true,
        (axis, Some(rank)) => axis.unwrap_or(1) == rank as i64 - 1,
        (_, None) => false,
    }
}

fn attribute<'a>(node: &'a NodeProto, name: &str) -> Option<&'a AttributeProto> {
    node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some(name))
}

fn text<'a>(node: &'a NodeProto, name: &str) -> Option<&'a str> {
    attribute(node, name)?.s.as_deref()
}

fn number(node: &NodeProto, name: &str) -> Option<i64> {
    attribute(node, name)?.i
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(op: &str, attributes: &[(&str, i64)], opset: i64, rank: Option<usize>, wrong: bool) {
        let attribute = attributes
            .iter()
            .map(|(name, value)| AttributeProto {
                name: Some((*name).into()),
                i: Some(*value),
                ..AttributeProto::default()
            })
            .collect();
        let node = NodeProto { op_type: Some(op.into()), attribute, ..NodeProto::default() };
        let known = Circumstances { opset, input: Some(Onnx::FLOAT), rank, second_rank: None };
        assert_eq!(fault(&node, op, known).is_some(), wrong, "{op} {attributes:?} {opset} {rank:?}");
    }

    #[test]
    fn an_old_softmax_is_right_on_the_last_axis_alone() {
        check("Softmax", &[], 13, None, false);
        check("Softmax", &[], 12, None, true);
        check("Softmax", &[], 12, Some(2), false);
        check("Softmax", &[], 12, Some(4), true);
        check("Softmax", &[("axis", 3)], 11, Some(4), false);
        check("Softmax", &[("axis", 1)], 11, Some(4), true);
        check("Softmax", &[("axis", -1)], 11, None, false);
        check("LogSoftmax", &[], 9, None, true);
    }

    #[test]
    fn a_product_with_a_vector_and_a_maximum_of_truths_are_refused() {
        let known = Circumstances { opset: 17, input: Some(Onnx::FLOAT), rank: None, second_rank: Some(1) };
        let node = NodeProto::default();
        assert!(fault(&node, "MatMul", known).is_some());
        assert!(fault(&node, "MatMul", Circumstances { second_rank: Some(2), ..known }).is_none());
        assert!(fault(&node, "MatMul", Circumstances { rank: Some(1), ..known }).is_none());
        assert!(fault(&node, "MatMul", Circumstances { rank: Some(3), ..known }).is_some());
        assert!(fault(&node, "ReduceMax", known).is_none());
        assert!(fault(&node, "ReduceMax", Circumstances { input: Some(Onnx::BOOL), ..known }).is_some());
    }

    #[test]
    fn windows_that_the_engine_gets_wrong_are_refused() {
        let known = Circumstances { opset: 17, input: Some(Onnx::FLOAT), rank: None, second_rank: None };
        let pads = |value: &str| NodeProto {
            attribute: vec![AttributeProto {
                name: Some("auto_pad".into()),
                s: Some(value.into()),
                ..AttributeProto::default()
            }],
            ..NodeProto::default()
        };
        let kernel = |dimensions: usize| NodeProto {
            attribute: vec![AttributeProto {
                name: Some("kernel_shape".into()),
                ints: vec![3; dimensions],
                ..AttributeProto::default()
            }],
            ..NodeProto::default()
        };
        assert!(fault(&pads("SAME_LOWER"), "Conv", known).is_some());
        assert!(fault(&pads("SAME_UPPER"), "Conv", known).is_none());
        let mut even = pads("SAME_LOWER");
        even.attribute.extend(kernel(2).attribute);
        assert!(fault(&even, "Conv", known).is_none());
        assert!(fault(&kernel(2), "MaxPool", known).is_none());
        assert!(fault(&kernel(3), "MaxPool", known).is_some());
        let indices = NodeProto { output: vec!["y".into(), "i".into()], ..kernel(2) };
        assert!(fault(&indices, "MaxPool", known).is_some());
    }

    #[test]
    fn what_fails_only_when_it_runs_is_known_when_it_loads() {
        check("GRU", &[], 17, None, true);
        check("GRU", &[("linear_before_reset", 1)], 17, None, false);
    }
}
