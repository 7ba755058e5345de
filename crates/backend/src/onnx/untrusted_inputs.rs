//! Which inputs must not change while the graph runs?
//!
//! An input may lie in memory that its client still writes. Most operators only compute with the numbers, so such a client harms only its own result.
//! But some operators check an index and then use it, or sort numbers by comparing them. A client that changes the numbers in between makes the
//! library read or write outside its tensors. Inputs of such operators are copied before the run. The copies are cheap, because indices are small,
//! and large inputs such as images are rarely read by such operators.
//!
//! The lists name the operators that are known to be harmless. The inputs of any other operator are copied, perhaps without need.

use std::collections::HashSet;

use super::nodes::Node;

/// Operators that only compute with the numbers of all their inputs.
#[rustfmt::skip]
const HARMLESS: &[&str] = &[
    "Abs", "Acos", "Acosh", "Add", "And", "ArgMax", "ArgMin", "Asin", "Asinh", "Atan", "Atanh", "AveragePool",
    "BatchNormalization", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "Celu", "Clip",
    "Concat", "Conv", "ConvInteger", "ConvTranspose", "Cos", "Cosh", "DepthToSpace", "DequantizeLinear", "Dropout",
    "DynamicQuantizeLinear", "Einsum", "Elu", "Equal", "Erf", "Exp", "Flatten", "Floor", "Gelu", "Gemm",
    "GlobalAveragePool", "GlobalMaxPool", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity",
    "InstanceNormalization", "IsInf", "IsNaN", "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log",
    "LogSoftmax", "LpNormalization", "LpPool", "LRN", "MatMul", "MatMulInteger", "Max", "MaxPool", "Mean",
    "MeanVarianceNormalization", "Min", "Mish", "Mul", "Neg", "Not", "Or", "Pow", "PRelu", "QLinearConv",
    "QLinearMatMul", "QuantizeLinear", "Reciprocal", "Relu", "Round", "Selu", "Shape", "Sigmoid", "Sign", "Sin",
    "Sinh", "Size", "Softmax", "Softplus", "Softsign", "SpaceToDepth", "Sqrt", "Sub", "Sum", "Tan", "Tanh",
    "ThresholdedRelu", "Transpose", "Where", "Xor",
];
/// Operators that only compute with the numbers of their first input. Their other inputs are positions, counts or parameters.
#[rustfmt::skip]
const HARMLESS_FIRST: &[&str] = &[
    // The divisor is searched for zeros before the division, so a zero must not be written to it in between.
    "Div", "Mod", "CumSum", "Expand", "Gather", "GatherElements", "GatherND", "GRU", "GridSample", "LSTM", "Pad",
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare", "Reshape", "Resize", "RNN", "Slice", "Split", "Squeeze", "Tile", "Trilu",
    "Unsqueeze", "Upsample",
];
/// Operators whose output may share memory with their first input.
#[rustfmt::skip]
const ALIASES: &[&str] = &[
    "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast", "Dropout", "Transpose", "Expand", "Slice",
    "Split",
];

/// The names of the inputs of one graph that must not change while the graph runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UntrustedInputs(HashSet<String>);

impl UntrustedInputs {
    /// Whether the value of this name must not change. The name may also be that of an output which the graph itself reads.
    pub fn contains(&self, value: &str) -> bool {
        self.0.contains(value)
    }

    /// Finds the inputs of the graph with these nodes, which are in the order of the graph.
    pub fn of(nodes: &[Node]) -> UntrustedInputs {
        let mut untrusted_inputs = HashSet::new();
        // The nodes are visited backwards, so that a node which reads an alias is visited before the node that makes the alias.
        for node in nodes.iter().rev() {
            expose(node, &mut untrusted_inputs);
        }
        UntrustedInputs(untrusted_inputs)
    }
}

fn expose(node: &Node, untrusted_inputs: &mut HashSet<String>) {
    for inner in node.inner.iter().rev() {
        expose(inner, untrusted_inputs);
    }
    let gives_on =
        ALIASES.contains(&node.op.as_str()) && node.outputs.iter().any(|output| untrusted_inputs.contains(output));
    for (at, input) in node.inputs.iter().enumerate() {
        let harmless = HARMLESS.contains(&node.op.as_str()) || (at == 0 && HARMLESS_FIRST.contains(&node.op.as_str()));
        if !harmless || (gives_on && at == 0) {
            untrusted_inputs.insert(input.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::nodes::Nodes;
    use super::*;

    #[track_caller]
    fn check(graph: &[(&str, &str, &str)], untrusted_inputs: &[&str]) {
        let names = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        let nodes: Vec<Node> = graph
            .iter()
            .map(|(op, inputs, outputs)| Node {
                op: (*op).into(),
                inputs: names(inputs),
                outputs: names(outputs),
                ..Node::default()
            })
            .collect();
        let found = UntrustedInputs::of(&nodes);
        for input in ["a", "b", "c"] {
            assert_eq!(found.contains(input), untrusted_inputs.contains(&input), "'{input}' of {graph:?}");
        }
    }

    #[test]
    fn what_is_only_reckoned_with_may_change() {
        check(&[("Add", "a b", "x"), ("MatMul", "x c", "y")], &[]);
        check(&[("Gather", "a table", "y")], &[]);
    }

    #[test]
    fn positions_sizes_and_what_is_sorted_may_not() {
        check(&[("Gather", "table a", "y")], &["a"]);
        check(&[("Reshape", "a b", "y")], &["b"]);
        check(&[("TopK", "a k", "y at")], &["a"]);
        check(&[("Div", "a b", "y")], &["b"]);
        check(&[("SomethingNew", "a b", "y")], &["a", "b"]);
    }

    #[test]
    fn a_view_of_an_input_is_the_input_and_a_result_is_not() {
        check(&[("Cast", "a", "x"), ("Squeeze", "x", "z"), ("Gather", "table z", "y")], &["a"]);
        check(&[("Add", "a b", "x"), ("Gather", "table x", "y")], &[]);
    }

    #[test]
    fn graphs_inside_operators_count() {
        let inner = Node {
            op: "Gather".into(),
            inputs: vec!["table".into(), "a".into()],
            outputs: vec!["y".into()],
            ..Node::default()
        };
        let node = Node {
            op: "If".into(),
            inputs: vec!["b".into()],
            outputs: vec!["z".into()],
            inner: vec![inner],
            ..Node::default()
        };
        let found = UntrustedInputs::of(&[node]);
        assert!(found.contains("a") && found.contains("b") && !found.contains("c"));
    }

    #[test]
    fn inputs_of_models_in_files_are_found() {
        let models = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/models");
        let of = |name: &str| {
            Nodes::read(std::fs::File::open(models.join(name))?).map(|nodes| UntrustedInputs::of(&nodes.graph))
        };
        assert!(
            of("pick.onnx")
                .is_ok_and(|untrusted_inputs| untrusted_inputs.contains("rows") && !untrusted_inputs.contains("table"))
        );
        assert!(
            of("misdeclared.onnx")
                .is_ok_and(|untrusted_inputs| untrusted_inputs.contains("shape") && !untrusted_inputs.contains("x"))
        );
    }
}
