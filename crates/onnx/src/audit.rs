//! Which graphs would an engine with 32-bit integers and floats compute wrongly?
//!
//! The graph is walked once, in its order. For each value its type in ONNX is noted, whether it is *small*, and how far it can be from zero, if that
//! is known. Constants near zero are small, and so are values that follow from shapes, positions and truth values. The values of a request are not
//! small. These are refused:
//!
//! - INT64 arithmetic on values that are not small, because an overflow of 32 bits would not be noticed. It is allowed if
//!   each request can be checked for values within 32 bits ([`MagnitudeBounds`]). Moving, comparing and choosing are exact
//!   in 32 bits, and so is arithmetic on sizes: the engine cannot hold a tensor of more than 2^31 elements anyway.
//! - Rounding values that are not small from a float to INT64.
//! - FP64 and FP16 arithmetic, and rounding to them. Moving, comparing, choosing and widening are exact.
//! - Truth values made from numbers, because the engine would keep the number.
//! - Operators that the engine is known to compute wrongly ([`faults`]).
//! - INT64 constants beyond 32 bits, except as the ends of slices, where saturation is right. FP64 constants that are no
//!   FP32.

mod constants;
mod faults;
mod magnitude;
mod operators;

use std::collections::HashMap;

use rten_onnx::onnx::{DataType as Onnx, GraphProto, NodeProto, ValueInfoProto};

use crate::graph::{Written, element_type, rank};
use faults::Circumstances;
use magnitude::Magnitude;
pub use magnitude::{Extremes, MagnitudeBounds};
use operators::{Kind, data_inputs, gives_small, kind, result_type};

/// Facts about a value.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Fact {
    onnx: Option<Onnx>,
    small: bool,
    /// The step of [`MagnitudeBounds`] that says how far an INT64 value can be from zero. `None` if that is not known.
    bound: Option<usize>,
}

const UNKNOWN: Fact = Fact { onnx: None, small: false, bound: None };

/// Facts about the values by name, including those of an outer graph.
type Facts = HashMap<String, Fact>;

/// Values that a graph declares, by name.
type Declared<'a> = HashMap<&'a str, &'a ValueInfoProto>;

/// The graph that an operator is in, and what it declares.
struct Scope<'a> {
    graph: &'a GraphProto,
    opset: i64,
    declared: Declared<'a>,
}

impl Scope<'_> {
    /// How many dimensions a value has, if the graph says it.
    fn rank(&self, name: &str) -> Option<usize> {
        let constant = || self.graph.initializer.iter().find(|constant| constant.name.as_deref() == Some(name));
        let input = || self.graph.input.iter().find(|value| value.name.as_deref() == Some(name));
        let declared = self.declared.get(name).copied().or_else(input).and_then(rank);
        declared.or_else(|| constant().map(|constant| constant.dims.len()))
    }
}

/// The bounds that must be checked when this graph runs. The error says why the graph is refused: a clause that names the operator or constant.
pub fn audit(written: &Written) -> Result<MagnitudeBounds, String> {
    let (mut facts, mut bounds) = (Facts::new(), MagnitudeBounds::default());
    for value in &written.graph.input {
        let (name, onnx) = (name(value.name.as_ref()), element_type(value));
        let followed = (onnx == Some(Onnx::INT64)).then(|| bounds.note(Magnitude::Input(name.clone())));
        facts.insert(name, Fact { onnx, bound: followed, ..UNKNOWN });
    }
    walk(&written.graph, written.opset, &mut facts, &mut bounds)?;
    Ok(bounds)
}

fn walk(graph: &GraphProto, opset: i64, facts: &mut Facts, bounds: &mut MagnitudeBounds) -> Result<(), String> {
    for constant in &graph.initializer {
        let name = name(constant.name.as_ref());
        let fact = constants::examine(constant, &name, graph, bounds)?;
        facts.insert(name, fact);
    }
    let declared = graph.value_info.iter().chain(&graph.output);
    let declared: Declared<'_> = declared.filter_map(|value| Some((value.name.as_deref()?, value))).collect();
    let scope = Scope { graph, opset, declared };
    for node in &graph.node {
        let results = visit(node, &scope, facts, bounds)?;
        for (output, fact) in node.output.iter().zip(results) {
            facts.insert(output.clone(), fact);
        }
    }
    Ok(())
}

/// Checks one operator, and returns what is known of its outputs.
fn visit(
    node: &NodeProto,
    scope: &Scope<'_>,
    facts: &Facts,
    bounds: &mut MagnitudeBounds,
) -> Result<Vec<Fact>, String> {
    let graph = scope.graph;
    let op = node.op_type.as_deref().unwrap_or_default();
    if op == "Constant" {
        return Ok(vec![constants::of_node(node, graph, bounds)?]);
    }
    constants::check_attributes(node, graph)?;
    for inner in node.attribute.iter().filter_map(|attribute| attribute.g.as_ref()) {
        visit_inner(inner, scope.opset, facts, bounds)?;
    }
    let inputs: Vec<Fact> = node.input.iter().map(|input| facts.get(input).copied().unwrap_or(UNKNOWN)).collect();
    let known = Circumstances {
        opset: scope.opset,
        input: inputs.first().and_then(|fact| fact.onnx),
        rank: node.output.first().and_then(|output| scope.rank(output)),
        second_rank: node.input.get(1).and_then(|input| scope.rank(input)),
    };
    if let Some(fault) = faults::fault(node, op, known) {
        return Err(format!("{} {fault}", shown(node, op)));
    }
    let all_small = node.input.iter().zip(&inputs).all(|(name, fact)| name.is_empty() || fact.small);
    let kind = kind(op);
    let mut results: Vec<Fact> = Vec::with_capacity(node.output.len());
    for (index, output) in node.output.iter().enumerate() {
        let declared = scope.declared.get(output.as_str()).and_then(|value| element_type(value));
        let onnx = declared.or_else(|| result_type(node, op, index, &inputs));
        let small = onnx == Some(Onnx::BOOL) || gives_small(op, index) || (all_small && kind != Kind::Graphs);
        let followed =
            if index == 0 && onnx == Some(Onnx::INT64) { follow(node, op, &inputs, small, bounds) } else { None };
        results.push(Fact { onnx, small, bound: followed });
    }
    check_node(node, op, kind, &inputs, &results).map(|()| results)
}

/// Notes how far an operator's INT64 result can be from zero, if that is known of its inputs. The result of arithmetic must fit in 32 bits.
fn follow(node: &NodeProto, op: &str, inputs: &[Fact], small: bool, bounds: &mut MagnitudeBounds) -> Option<usize> {
    if op == "Cast" && inputs.first().is_some_and(|from| from.onnx == Some(Onnx::BOOL)) {
        return Some(bounds.note(Magnitude::Constant(1)));
    }
    let of = |positions: Vec<usize>| positions.into_iter().map(|at| inputs.get(at)?.bound).collect::<Option<Vec<_>>>();
    let step = match op {
        "Add" | "Sub" => Magnitude::Sum(of(vec![0, 1])?),
        "Mul" => Magnitude::Product(of(vec![0, 1])?),
        "CumSum" | "ReduceSum" => total(node, inputs, bounds)?,
        _ => Magnitude::Max(of(data_inputs(node, op)?)?),
    };
    let computes = kind(op) == Kind::Computes;
    let number = bounds.note(step);
    // The result of arithmetic on sizes alone is always right, and its inputs are not always followed.
    if computes && !small {
        bounds.must_fit(number, shown(node, op));
    }
    Some(number)
}

/// The sum over an input of the graph. The number of its elements is known from the request.
fn total(node: &NodeProto, inputs: &[Fact], bounds: &MagnitudeBounds) -> Option<Magnitude> {
    match bounds.step(inputs.first()?.bound?)? {
        Magnitude::Input(name) if node.input.first() == Some(name) => Some(Magnitude::Total(name.clone())),
        _ => None,
    }
}

/// A graph within an operator. The values that it gets in each round are not known, except for the number of the round
/// and a condition.
fn visit_inner(inner: &GraphProto, opset: i64, facts: &Facts, bounds: &mut MagnitudeBounds) -> Result<(), String> {
    let mut facts = facts.clone();
    for (index, value) in inner.input.iter().enumerate() {
        let onnx = element_type(value);
        let counts = index == 0 && onnx == Some(Onnx::INT64) && rank(value) == Some(0);
        let small = counts || onnx == Some(Onnx::BOOL);
        facts.insert(name(value.name.as_ref()), Fact { onnx, small, bound: None });
    }
    walk(inner, opset, &mut facts, bounds)
}

fn check_node(node: &NodeProto, op: &str, kind: Kind, inputs: &[Fact], results: &[Fact]) -> Result<(), String> {
    match kind {
        // The operators of the inner graphs were checked by `visit_inner`.
        Kind::Graphs => Ok(()),
        Kind::Casts => check_cast(node, op, inputs.first(), results.first()),
        Kind::Moves | Kind::Positions => Ok(()),
        Kind::Computes => {
            if results.iter().any(|fact| fact.onnx == Some(Onnx::INT64) && !fact.small && fact.bound.is_none()) {
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

fn check_cast(node: &NodeProto, op: &str, from: Option<&Fact>, to: Option<&Fact>) -> Result<(), String> {
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

/// Whether the engine keeps numbers of this type as FP32, with more or fewer digits.
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
