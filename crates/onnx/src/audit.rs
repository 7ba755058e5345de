//! What would an engine with 32-bit integers and floats falsify?
//!
//! The graph is walked once, in its order, with what is known of each value: its type in ONNX, and whether it is *small*.
//! Small are constants near zero and what follows from shapes, positions and truth values; the values of a request are not.
//! Refused are:
//!
//! - INT64 arithmetic on values that are not small (an overflow of 32 bits would go unseen), and rounding such values to
//!   INT64 from a float. Moving, comparing and choosing are exact in 32 bits, and so is arithmetic on sizes: a tensor
//!   whose sizes multiply beyond 2^31 elements is none this engine can hold.
//! - FP64 and FP16 arithmetic, and rounding to them. Moving, comparing, choosing and widening are exact.
//! - Truth values made from numbers: the engine would keep the number.
//! - What the engine is known to get wrong ([`faults`]).
//! - INT64 constants beyond 32 bits, except as the ends of slices, which saturate rightly; FP64 constants that are no FP32.

mod constants;
mod faults;
mod operators;

use std::collections::HashMap;

use rten_onnx::onnx::{DataType as Onnx, GraphProto, NodeProto};

use crate::graph::element_type;
use operators::{Kind, gives_small, kind, result_type};

/// What is known of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Fact {
    onnx: Option<Onnx>,
    small: bool,
}

/// What is known of the values by name, an outer graph's among them.
type Facts = HashMap<String, Fact>;

/// Why this graph would be falsified, if it would: a clause that names the operator or constant.
pub fn audit(graph: &GraphProto) -> Result<(), String> {
    let mut facts = Facts::new();
    for value in &graph.input {
        facts.insert(name(value.name.as_ref()), Fact { onnx: element_type(value), small: false });
    }
    walk(graph, &mut facts)
}

fn walk(graph: &GraphProto, facts: &mut Facts) -> Result<(), String> {
    for constant in &graph.initializer {
        let fact = constants::examine(constant, &name(constant.name.as_ref()), graph)?;
        facts.insert(name(constant.name.as_ref()), fact);
    }
    let declared: HashMap<&str, Onnx> = graph
        .value_info
        .iter()
        .chain(&graph.output)
        .filter_map(|value| Some((value.name.as_deref()?, element_type(value)?)))
        .collect();
    for node in &graph.node {
        let results = visit(node, graph, facts, &declared)?;
        for (output, fact) in node.output.iter().zip(results) {
            facts.insert(output.clone(), fact);
        }
    }
    Ok(())
}

/// Judges one operator and says what is known of its outputs.
fn visit(
    node: &NodeProto,
    graph: &GraphProto,
    facts: &Facts,
    declared: &HashMap<&str, Onnx>,
) -> Result<Vec<Fact>, String> {
    let op = node.op_type.as_deref().unwrap_or_default();
    if op == "Constant" {
        return Ok(vec![constants::of_node(node, graph)?]);
    }
    constants::check_attributes(node, graph)?;
    for inner in node.attribute.iter().filter_map(|attribute| attribute.g.as_ref()) {
        visit_inner(inner, facts)?;
    }
    let unknown = Fact { onnx: None, small: false };
    let inputs: Vec<Fact> = node.input.iter().map(|input| facts.get(input).copied().unwrap_or(unknown)).collect();
    if let Some(fault) = faults::fault(node, op, inputs.first().and_then(|fact| fact.onnx)) {
        return Err(format!("{} {fault}", shown(node, op)));
    }
    let all_small = node.input.iter().zip(&inputs).all(|(name, fact)| name.is_empty() || fact.small);
    let kind = kind(op);
    let results: Vec<Fact> = node
        .output
        .iter()
        .enumerate()
        .map(|(index, output)| {
            let onnx = declared.get(output.as_str()).copied().or_else(|| result_type(node, op, index, &inputs));
            let small = onnx == Some(Onnx::BOOL) || gives_small(op, index) || (all_small && kind != Kind::Graphs);
            Fact { onnx, small }
        })
        .collect();
    judge(node, op, kind, &inputs, &results).map(|()| results)
}

/// A graph within an operator: what it is fed in each round is not known, but for the round's number and a condition.
fn visit_inner(inner: &GraphProto, facts: &Facts) -> Result<(), String> {
    let mut facts = facts.clone();
    for (index, value) in inner.input.iter().enumerate() {
        let onnx = element_type(value);
        let counts = index == 0 && onnx == Some(Onnx::INT64) && value_is_scalar(value);
        facts.insert(name(value.name.as_ref()), Fact { onnx, small: counts || onnx == Some(Onnx::BOOL) });
    }
    walk(inner, &mut facts)
}

fn value_is_scalar(value: &rten_onnx::onnx::ValueInfoProto) -> bool {
    let tensor = value.r#type.as_ref().and_then(|kind| kind.tensor_type.as_ref());
    tensor.and_then(|tensor| tensor.shape.as_ref()).is_some_and(|shape| shape.dim.is_empty())
}

fn judge(node: &NodeProto, op: &str, kind: Kind, inputs: &[Fact], results: &[Fact]) -> Result<(), String> {
    match kind {
        // What they compute was judged inside them.
        Kind::Graphs => Ok(()),
        Kind::Casts => judge_cast(node, op, inputs.first(), results.first()),
        Kind::Moves | Kind::Positions => Ok(()),
        Kind::Computes => {
            if results.iter().any(|fact| fact.onnx == Some(Onnx::INT64) && !fact.small) {
                return Err(format!(
                    "{} computes on INT64 values, which the engine keeps in 32 bits: an overflow would go unseen",
                    shown(node, op)
                ));
            }
            match inputs.iter().chain(results).find_map(|fact| fact.onnx.filter(|onnx| narrowed(*onnx))) {
                Some(onnx) => Err(format!(
                    "{} computes in {}, which the engine keeps as FP32: results would differ",
                    shown(node, op),
                    protocol_name(onnx)
                )),
                None => Ok(()),
            }
        }
    }
}

fn judge_cast(node: &NodeProto, op: &str, from: Option<&Fact>, to: Option<&Fact>) -> Result<(), String> {
    let (Some(from), Some(Onnx(target))) = (from, to.and_then(|to| to.onnx)) else { return Ok(()) };
    let source = from.onnx.unwrap_or(Onnx(0));
    let short = [Onnx::BOOL, Onnx::INT8, Onnx::UINT8].contains(&source);
    let float = [Onnx::FLOAT, Onnx::DOUBLE, Onnx::FLOAT16].contains(&source);
    let falsified = match Onnx(target) {
        same if same == source => None,
        Onnx::BOOL => Some("makes truth values of numbers, which the engine would keep as they are"),
        Onnx::DOUBLE if !short && !float => Some("widens to FP64, which the engine keeps as FP32"),
        Onnx::FLOAT16 if !short => Some("rounds to FP16, which the engine keeps as FP32"),
        Onnx::INT64 if !from.small && (float || from.onnx.is_none()) => {
            Some("rounds to INT64, which the engine keeps in 32 bits: larger values would be cut off unseen")
        }
        _ => None,
    };
    falsified.map_or(Ok(()), |how| Err(format!("{} {how}", shown(node, op))))
}

/// Kept as FP32, with more or fewer digits than asked for.
fn narrowed(onnx: Onnx) -> bool {
    onnx == Onnx::DOUBLE || onnx == Onnx::FLOAT16
}

fn protocol_name(onnx: Onnx) -> &'static str {
    crate::graph::datatype(onnx).map_or("an unknown datatype", nerite_tensor::DataType::name)
}

fn shown(node: &NodeProto, op: &str) -> String {
    match node.name.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => format!("operator {op} ('{name}')"),
        None => format!("operator {op}"),
    }
}

fn name(name: Option<&String>) -> String {
    name.cloned().unwrap_or_default()
}
