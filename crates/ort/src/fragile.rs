//! Which graphs does ONNX Runtime not survive if an input has no elements?
//!
//! A few of its operators end the process, or never end, where a tensor has a dimension of 0: a check of theirs calls
//! `std::terminate`, or they read what is not there. No handler can mend that. So a request without elements in some input
//! is refused where the graph has such an operator. `tests/hostile/test_operands.py` runs every operator of ONNX's own
//! tests without elements; those that end the process are named here.

use std::collections::HashSet;

use nerite_backend::onnx::{Node, Ports};
use nerite_request::Status;
use nerite_tensor::Tensor;

/// Seen in version 1.31: GRU, LSTM and Unique call `std::terminate`, ConvTranspose of three dimensions reads through an
/// address that is not its own.
const ENDS_THE_PROCESS: &[&str] = &["ConvTranspose", "GRU", "LSTM", "Unique"];
/// The same, if a request brings more than their first input. Seen in version 1.31: QLinearConv reads through an address that is not
/// its own, Conv never ends. Weights that are constants have elements.
const WITH_OPEN_WEIGHTS: &[&str] = &["Conv", "ConvInteger", "QLinearConv"];

/// The operator for whose sake the graph's inputs must have elements; `None` if they need none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fragile(Option<String>);

impl Fragile {
    /// Of the graph with these nodes, in their order, and of its functions' nodes.
    pub fn of(ports: &Ports, nodes: &[Node], functions: &[Node]) -> Fragile {
        // What depends on a request, by name.
        let mut open: HashSet<&str> = ports.inputs.iter().map(|port| port.name.as_str()).collect();
        let of_graph = nodes.iter().find_map(|node| find(node, &mut open));
        // What a function is given is not followed.
        let of_function = || functions.iter().find_map(named);
        Fragile(of_graph.or_else(of_function).map(str::to_owned))
    }

    /// Refuses an input without elements where the graph may not get one.
    pub fn check(&self, input: &Tensor) -> Result<(), Status> {
        match &self.0 {
            Some(op) if input.shape.contains(&0) => Err(Status::invalid(format!(
                "input '{}' has no elements (its shape is {:?}), and ONNX Runtime does not survive that in a graph with the \
                 operator {op}",
                input.name, input.shape
            ))),
            _ => Ok(()),
        }
    }
}

/// The fragile operator that a node is or has inside. What it makes is open if anything it reads is.
fn find<'a>(node: &'a Node, open: &mut HashSet<&'a str>) -> Option<&'a str> {
    let is_open = |open: &HashSet<&str>| node.inputs.iter().any(|input| open.contains(input.as_str()));
    let weights_open = node.inputs.iter().skip(1).any(|weights| open.contains(weights.as_str()));
    let found =
        ENDS_THE_PROCESS.contains(&node.op.as_str()) || WITH_OPEN_WEIGHTS.contains(&node.op.as_str()) && weights_open;
    // Inner graphs read what is outside by its name, and what they are fed has names that they choose themselves.
    let found = if found { Some(node.op.as_str()) } else { node.inner.iter().find_map(named) };
    if is_open(open) || !node.inner.is_empty() {
        open.extend(node.outputs.iter().map(String::as_str));
    }
    found
}

/// The same for a node of whose inputs nothing is known.
fn named(node: &Node) -> Option<&str> {
    let op = node.op.as_str();
    let found = ENDS_THE_PROCESS.contains(&op) || WITH_OPEN_WEIGHTS.contains(&op);
    if found { Some(op) } else { node.inner.iter().find_map(named) }
}

#[cfg(test)]
mod tests {
    use nerite_backend::onnx::Port;

    use super::*;

    fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> Node {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        Node { op: op.into(), inputs: names(inputs), outputs: names(outputs), ..Node::default() }
    }

    #[track_caller]
    fn check(nodes: &[Node], functions: &[Node], expect: Option<&str>) {
        let inputs = ["x", "w"].map(|name| Port { name: name.into(), datatype: None, dims: None });
        let ports = Ports { inputs: inputs.into(), outputs: Vec::new() };
        assert_eq!(Fragile::of(&ports, nodes, functions).0.as_deref(), expect, "{nodes:?}");
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
