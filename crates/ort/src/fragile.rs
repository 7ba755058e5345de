//! For which graphs does ONNX Runtime end the process if an input has no elements?
//!
//! A few of its operators end the process, or never return, if a tensor has a dimension of 0: one of their checks calls
//! `std::terminate`, or they read outside of a tensor. No handler can prevent that. So a request without elements in
//! some input is refused if the graph has such an operator. `tests/hostile/test_operands.py` runs every operator of
//! ONNX's own tests without elements. Those that end the process are listed here.

use std::collections::HashSet;

use nerite_backend::onnx::Node;
use nerite_config::ModelConfig;
use nerite_request::Status;
use nerite_tensor::Tensor;

/// Seen in version 1.31: GRU, LSTM and Unique call `std::terminate`, ConvTranspose of three dimensions reads from an invalid address.
const ENDS_THE_PROCESS: &[&str] = &["ConvTranspose", "GRU", "LSTM", "Unique"];
/// Operators that do so only if a request brings more than their first input. Seen in version 1.31: QLinearConv reads from an invalid address, Conv
/// never returns. Weights that are constants have elements.
const WITH_OPEN_WEIGHTS: &[&str] = &["Conv", "ConvInteger", "QLinearConv"];

/// Operators whose results have elements if all their inputs have some. Other operators may give none: a slice, a selection, or a window that is
/// larger than the image.
#[rustfmt::skip]
const KEEPS_ELEMENTS: &[&str] = &[
    "Abs", "Add", "And", "ArgMax", "ArgMin", "Attention", "BatchNormalization", "BitwiseAnd", "BitwiseNot", "BitwiseOr",
    "BitwiseXor", "Cast", "CastLike", "Ceil", "Celu", "Clip", "Concat", "Constant", "Cos", "CumSum", "DepthToSpace",
    "DequantizeLinear", "Div", "Dropout", "DynamicQuantizeLinear", "Einsum", "Elu", "Equal", "Erf", "Exp", "Flatten",
    "Floor", "GRU", "Gather", "GatherElements", "GatherND", "Gelu", "Gemm", "GlobalAveragePool", "GlobalMaxPool",
    "Greater", "GreaterOrEqual", "GroupNormalization", "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization",
    "IsInf", "IsNaN", "LRN", "LSTM", "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax",
    "LpNormalization", "MatMul", "MatMulInteger", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or",
    "PRelu", "Pow", "QLinearMatMul", "QuantizeLinear", "RMSNormalization", "RNN", "Reciprocal", "ReduceL1", "ReduceL2",
    "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
    "ReduceSumSquare", "Relu", "Reshape", "ReverseSequence", "Round", "ScatterElements", "ScatterND", "Selu", "Shape",
    "Sigmoid", "Sign", "Sin", "Size", "Softmax", "Softplus", "Softsign", "Sqrt", "Squeeze", "Sub", "Sum", "Swish",
    "Tan", "Tanh", "ThresholdedRelu", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor",
];

/// Operators whose results also have elements if no request chooses the sizes of their inputs. Then a window fits for all requests or for none.
const KEEPS_ELEMENTS_OF_FIXED_SIZES: &[&str] =
    &["AveragePool", "Conv", "ConvInteger", "ConvTranspose", "MaxPool", "Pad", "QLinearConv", "Resize", "Upsample"];

/// The operators of a graph because of which ONNX Runtime may end the process if a tensor has no elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fragile {
    /// The operator because of which the graph's inputs must have elements.
    of_inputs: Option<String>,
    /// An operator that may get a tensor without elements from inside the graph, although all inputs have some.
    inside: Option<String>,
}

/// Whether a request chooses the sizes of a model's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// At most the number of rows.
    Fixed,
    /// Other dimensions, too.
    Chosen,
}

/// Names of a graph's values, as far as they have been followed.
struct Values<'a> {
    sizes: Sizes,
    /// Values that depend on a request.
    open: HashSet<&'a str>,
    /// Values that may have no elements although the inputs have some.
    emptied: HashSet<&'a str>,
}

impl Sizes {
    /// The sizes of a model with this configuration, which is complete.
    pub fn of(config: &ModelConfig) -> Sizes {
        let rows = usize::from(config.max_batch_size == 0);
        let is_fixed = config.input.iter().all(|input| input.dims.iter().skip(rows).all(|dim| *dim > 0));
        if is_fixed { Sizes::Fixed } else { Sizes::Chosen }
    }
}

impl Fragile {
    /// Examines the graph with these inputs and nodes, in their order, and the nodes of its functions.
    pub fn of<'a>(
        inputs: impl IntoIterator<Item = &'a str>,
        sizes: Sizes,
        nodes: &'a [Node],
        functions: &[Node],
    ) -> Fragile {
        let open = inputs.into_iter().collect();
        let mut values = Values { sizes, open, emptied: HashSet::new() };
        let mut fragile = Fragile::default();
        for node in nodes {
            fragile.visit(node, &values);
            values.follow(node);
        }
        // The arguments of a function are not followed, so nothing is known about the inputs of its operators.
        fragile.of_inputs = fragile.of_inputs.or_else(|| functions.iter().find_map(named).map(str::to_owned));
        fragile.inside = fragile.inside.or_else(|| functions.iter().find_map(ending).map(str::to_owned));
        fragile
    }

    fn visit(&mut self, node: &Node, values: &Values<'_>) {
        let op = node.op.as_str();
        let ends = ENDS_THE_PROCESS.contains(&op);
        let has_open_weights = node.inputs.iter().skip(1).any(|weights| values.open.contains(weights.as_str()));
        let is_fragile = ends || WITH_OPEN_WEIGHTS.contains(&op) && has_open_weights;
        let is_emptied = |input: &String| values.emptied.contains(input.as_str());
        // Inner graphs use names of outer values, and have their own names for the values that they are given.
        let of_inputs = if is_fragile { Some(op) } else { node.inner.iter().find_map(named) };
        // Only these inputs matter, because the operator checks that its other inputs fit them.
        let decisive = if ends { 1 } else { 2 };
        let meets = is_fragile && node.inputs.iter().take(decisive).any(is_emptied);
        let inside = if meets { Some(op) } else { node.inner.iter().find_map(ending) };
        self.of_inputs = self.of_inputs.take().or_else(|| of_inputs.map(str::to_owned));
        self.inside = self.inside.take().or_else(|| inside.map(str::to_owned));
    }

    /// Refuses an input without elements if the graph must not get one.
    pub fn check(&self, input: &Tensor) -> Result<(), Status> {
        match &self.of_inputs {
            Some(op) if input.shape.contains(&0) => Err(Status::invalid(format!(
                "input '{}' has no elements (its shape is {:?}), and ONNX Runtime does not survive that in a graph with the \
                 operator {op}",
                input.name, input.shape
            ))),
            _ => Ok(()),
        }
    }

    /// The operator that may still get a tensor without elements from a request. A model with such an operator is safe only in a process of its own.
    pub fn inside(&self) -> Option<&str> {
        self.inside.as_deref()
    }
}

impl<'a> Values<'a> {
    /// Notes what is known about the outputs of a node.
    fn follow(&mut self, node: &'a Node) {
        let reads = |names: &HashSet<&str>| node.inputs.iter().any(|input| names.contains(input.as_str()));
        let outputs = node.outputs.iter().map(String::as_str);
        if reads(&self.open) || !node.inner.is_empty() {
            self.open.extend(outputs.clone());
        }
        if reads(&self.emptied) || !self.keeps_elements(&node.op) {
            self.emptied.extend(outputs);
        }
    }

    /// Whether the operator's results have elements if all its inputs have some.
    fn keeps_elements(&self, op: &str) -> bool {
        KEEPS_ELEMENTS.contains(&op) || self.sizes == Sizes::Fixed && KEEPS_ELEMENTS_OF_FIXED_SIZES.contains(&op)
    }
}

/// The fragile operator that a node is or contains, if nothing is known about its inputs.
fn named(node: &Node) -> Option<&str> {
    let op = node.op.as_str();
    let found = ENDS_THE_PROCESS.contains(&op) || WITH_OPEN_WEIGHTS.contains(&op);
    if found { Some(op) } else { node.inner.iter().find_map(named) }
}

/// The same for operators that are fragile whatever weights they have.
fn ending(node: &Node) -> Option<&str> {
    let op = node.op.as_str();
    if ENDS_THE_PROCESS.contains(&op) { Some(op) } else { node.inner.iter().find_map(ending) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> Node {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        Node { op: op.into(), inputs: names(inputs), outputs: names(outputs), ..Node::default() }
    }

    #[track_caller]
    fn check(nodes: &[Node], functions: &[Node], expect: Option<&str>) {
        let fragile = Fragile::of(["x", "w"], Sizes::Chosen, nodes, functions);
        assert_eq!(fragile.of_inputs.as_deref(), expect, "{nodes:?}");
    }

    #[track_caller]
    fn check_inside(nodes: &[Node], expect: Option<&str>) {
        check_sizes(Sizes::Chosen, nodes, expect);
    }

    #[track_caller]
    fn check_sizes(sizes: Sizes, nodes: &[Node], expect: Option<&str>) {
        assert_eq!(Fragile::of(["v"], sizes, nodes, &[]).inside(), expect, "{nodes:?}");
    }

    #[test]
    fn what_may_lose_its_elements_inside_is_followed() {
        let gru = |input: &str| node("GRU", &[input, "w", "r"], &["y"]);
        check_inside(&[gru("x")], None);
        check_inside(&[node("Relu", &["x"], &["a"]), gru("a")], None);
        check_inside(&[node("Slice", &["x", "from", "to"], &["a"]), gru("a")], Some("GRU"));
        check_inside(
            &[node("Slice", &["x", "from", "to"], &["a"]), node("Relu", &["a"], &["b"]), gru("b")],
            Some("GRU"),
        );
        check_inside(&[node("Slice", &["x", "from", "to"], &["a"]), gru("x")], None);
        check_inside(&[node("Slice", &["x", "from", "to"], &["a"]), node("Conv", &["a", "w"], &["b"])], None);
        check_inside(&[node("Slice", &["x", "from", "to"], &["a"]), node("Conv", &["a", "v"], &["b"])], Some("Conv"));
        check_inside(&[node("Expand", &["x", "to"], &["h"]), node("GRU", &["x", "w", "r", "", "", "h"], &["y"])], None);
    }

    #[test]
    fn windows_leave_elements_where_no_request_chooses_the_sizes() {
        let upscaling = [node("Conv", &["x", "w"], &["a"]), node("ConvTranspose", &["a", "w"], &["y"])];
        check_sizes(Sizes::Chosen, &upscaling, Some("ConvTranspose"));
        check_sizes(Sizes::Fixed, &upscaling, None);
        let cut = [node("Slice", &["x", "from", "to"], &["a"]), node("ConvTranspose", &["a", "w"], &["y"])];
        check_sizes(Sizes::Fixed, &cut, Some("ConvTranspose"));
    }

    #[track_caller]
    fn check_config(text: &str, expect: Sizes) {
        let config = nerite_config::parse_text("c", text.as_bytes()).unwrap();
        assert_eq!(Sizes::of(&config), expect, "{text}");
    }

    #[test]
    fn a_request_may_choose_the_rows_or_more() {
        check_config("input [{ name: 'x' dims: [ 3, 224 ] }]", Sizes::Fixed);
        check_config("input [{ name: 'x' dims: [ -1, 224 ] }]", Sizes::Fixed);
        check_config("input [{ name: 'x' dims: [ 3, -1 ] }]", Sizes::Chosen);
        check_config("max_batch_size: 8 input [{ name: 'x' dims: [ -1, 224 ] }]", Sizes::Chosen);
    }

    #[test]
    fn an_operator_that_ends_the_process_makes_a_graph_fragile() {
        check(&[node("Relu", &["x"], &["y"])], &[], None);
        check(&[node("Relu", &["x"], &["y"]), node("GRU", &["y", "c"], &["z"])], &[], Some("GRU"));
        check(&[node("Relu", &["x"], &["y"])], &[node("LSTM", &["a"], &["b"])], Some("LSTM"));
    }

    #[test]
    fn a_convolution_does_if_a_request_brings_its_weights() {
        check(&[node("Conv", &["x", "constant"], &["y"])], &[], None);
        check(&[node("Conv", &["x", "w"], &["y"])], &[], Some("Conv"));
        let computed = [node("Transpose", &["w"], &["v"]), node("Conv", &["x", "v"], &["y"])];
        check(&computed, &[], Some("Conv"));
    }

    #[test]
    fn graphs_inside_operators_are_looked_through() {
        let around = Node { inner: vec![node("Unique", &["a"], &["b"])], ..node("If", &["c"], &["y"]) };
        check(&[around], &[], Some("Unique"));
    }
}
