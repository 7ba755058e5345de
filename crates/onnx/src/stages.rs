//! After which operators can a run of a graph be interrupted?
//!
//! The engine runs a graph to its end and cannot be stopped. But it takes any values of a graph as inputs and gives any as outputs. So a run can be
//! done in stages, all by the same loaded graph:
//!
//! ```text
//!   x ─► [op op op] ─► a ─► [op op op] ─► b, c ─► [op op] ─► y        boundaries: {a} and {b, c}
//! ```
//!
//! The values that pass a boundary are those that are made before it and read after it. The optimiser may have removed such a value, so a boundary is
//! a proposal, which the engine accepts or refuses at its first use ([`crate::staged`]).

use std::collections::{HashMap, HashSet};

use rten_onnx::onnx::{GraphProto, NodeProto};

use crate::cut::{names, reads};

/// The most stages of a graph.
pub const STAGES_MAX: usize = 128;
/// The fewest operators of a stage.
const OPERATORS_MIN: usize = 2;
/// The most computed values that pass a boundary.
const PASSED_MAX: usize = 16;
/// The most names that are kept at all boundaries together.
const NAMES_MAX: usize = 1 << 16;

/// The results that need a value: one bit for each of the graph's outputs. The last bit stands for all further outputs.
pub type OutputBits = u64;

/// The bit of an output.
pub fn bit(output: usize) -> OutputBits {
    1 << output.min(OutputBits::BITS as usize - 1)
}

/// A place between two operators.
#[derive(Debug, PartialEq)]
pub struct Boundary {
    /// The values that pass it.
    pub values: Vec<(String, OutputBits)>,
}

/// The boundaries of a graph in the order of its operators, at regular distances and where few values pass. None if a value is read before it is made.
pub fn boundaries(graph: &GraphProto) -> Vec<Boundary> {
    let Some(lives) = Lives::of(graph) else { return Vec::new() };
    let operators = lives.made.len();
    let stages = (operators / OPERATORS_MIN).min(STAGES_MAX);
    let (passed, mut found) = (lives.passed(), Vec::new());
    // Each window of operators has one boundary: behind the last operator of those where the fewest values pass.
    let windows = (1..stages).map(|at| (at - 1) * operators / stages..at * operators / stages);
    for window in windows {
        let least = window.rev().min_by_key(|at| passed.get(*at).copied().unwrap_or(usize::MAX));
        found.extend(least.filter(|at| passed.get(*at).is_some_and(|count| *count <= PASSED_MAX)));
    }
    lives.at(&found)
}

/// When each value is made and read for the last time.
struct Lives<'g> {
    graph: &'g GraphProto,
    /// The computed values that each operator makes.
    made: Vec<Vec<&'g str>>,
    /// The last operator that reads a value. A result is read by the caller, after all operators.
    last_reads: HashMap<&'g str, usize>,
    /// The results that need each value.
    bits_of: HashMap<&'g str, OutputBits>,
}

impl<'g> Lives<'g> {
    fn of(graph: &'g GraphProto) -> Option<Lives<'g>> {
        let mut constants: HashSet<&str> =
            graph.initializer.iter().filter_map(|constant| constant.name.as_deref()).collect();
        let mut known: HashSet<&str> = names(&graph.input).filter(|name| !constants.contains(name)).collect();
        let (mut made, mut read) = (Vec::new(), Vec::new());
        for node in &graph.node {
            let mut found = Vec::new();
            reads(node, &mut found);
            let outputs = node.output.iter().map(String::as_str).filter(|name| !name.is_empty());
            if is_deterministic(node) && found.iter().all(|name| constants.contains(name)) {
                // The engine computes it when it loads the graph, or anew in each stage.
                constants.extend(outputs);
                continue;
            }
            found.retain(|name| !constants.contains(name));
            if !found.iter().all(|name| known.contains(name)) {
                return None;
            }
            let outputs: Vec<&str> = outputs.collect();
            known.extend(&outputs);
            made.push(outputs);
            read.push(found);
        }
        let mut last_reads = HashMap::new();
        for (at, found) in read.iter().enumerate() {
            last_reads.extend(found.iter().map(|name| (*name, at)));
        }
        let mut bits_of: HashMap<&str, OutputBits> = HashMap::new();
        for (at, output) in names(&graph.output).enumerate().filter(|(_, name)| known.contains(name)) {
            last_reads.insert(output, made.len());
            *bits_of.entry(output).or_default() |= bit(at);
        }
        for (outputs, found) in made.iter().zip(&read).rev() {
            let bits = outputs.iter().filter_map(|name| bits_of.get(name)).fold(0, |all, bits| all | bits);
            for name in found {
                *bits_of.entry(name).or_default() |= bits;
            }
        }
        Some(Lives { graph, made, last_reads, bits_of })
    }

    /// How many computed values pass the boundary behind each operator. Results do not count, because they are kept in any case.
    fn passed(&self) -> Vec<usize> {
        let (mut alive, mut counts, mut ends) = (0, Vec::with_capacity(self.made.len()), vec![0; self.made.len() + 1]);
        for (at, outputs) in self.made.iter().enumerate() {
            for last in outputs.iter().filter_map(|name| self.last_reads.get(name)) {
                if *last > at && *last < self.made.len() {
                    alive += 1;
                    ends.iter_mut().skip(*last).take(1).for_each(|count| *count += 1);
                }
            }
            alive -= ends.get(at).copied().unwrap_or(0);
            counts.push(alive);
        }
        counts
    }

    /// The boundaries behind these operators.
    fn at(&self, operators: &[usize]) -> Vec<Boundary> {
        let mut alive: Vec<&str> = names(&self.graph.input).filter(|name| self.last_reads.contains_key(name)).collect();
        let (mut found, mut wanted, mut kept) = (Vec::with_capacity(operators.len()), operators.iter().peekable(), 0);
        for (at, outputs) in self.made.iter().enumerate() {
            alive.extend(outputs.iter().filter(|name| self.last_reads.contains_key(*name)));
            if wanted.next_if_eq(&&at).is_none() {
                continue;
            }
            alive.retain(|name| self.last_reads.get(name).is_some_and(|last| *last > at));
            kept += alive.len();
            if kept > NAMES_MAX {
                break;
            }
            let bits = |name: &&str| self.bits_of.get(name).copied().unwrap_or(0);
            let values = alive.iter().map(|name| ((*name).to_owned(), bits(name))).collect();
            found.push(Boundary { values });
        }
        found
    }
}

/// Whether an operator gives the same results for the same inputs each time. Two stages must not each draw their own random numbers.
fn is_deterministic(node: &NodeProto) -> bool {
    let draws = |op: &str| op.starts_with("Random") || matches!(op, "Bernoulli" | "Dropout" | "Multinomial");
    let inner = node.attribute.iter().filter_map(|attribute| attribute.g.as_ref()).flat_map(|graph| &graph.node);
    node.op_type.as_deref().is_some_and(|op| !draws(op)) && inner.into_iter().all(is_deterministic)
}

#[cfg(test)]
mod tests;
