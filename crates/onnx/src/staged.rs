//! How does a graph run in stages, so that its run can be ended in between?
//!
//! All stages are runs of the same graph in the engine, with the same weights. So the results are the same whether a run has stages or not. If the
//! optimiser removed a value that passes a boundary, the engine makes no plan for that value. Such a boundary is not used again for these results. No
//! request can make others lose a boundary, because a boundary is only given up after a run has succeeded without it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nerite_backend::CostBound;
use rten::{Model, NodeId, RunError, RunErrorKind, RunOptions, Value, ValueOrView};
use rten_onnx::onnx::GraphProto;
use rten_tensor::Layout;

use crate::conditions::{Conditions, Fault};
use crate::cut::names;
use crate::pace::{Class, Pace, Stops};
use crate::stages::{Boundary, OutputBits, bit, boundaries};

/// The most times that a run begins anew because the engine refuses to continue from a boundary. Later runs find further boundaries of that kind.
const RESTARTS_MAX: usize = 2;
/// The most sets of results for which a boundary can be known as unusable.
const REFUSALS_MAX: usize = 4;

/// A graph in the engine.
pub struct Staged {
    model: Model,
    stops: Vec<Stop>,
    /// The bits of each result. They say which values a run needs.
    results: HashMap<NodeId, OutputBits>,
    pace: Pace,
}

/// Where the runs of a graph can be ended, before it is in the engine.
#[derive(Default)]
pub struct Proposed {
    boundaries: Vec<Boundary>,
    results: Vec<String>,
}

/// A boundary in the engine.
struct Stop {
    /// The values that pass it.
    values: Vec<(NodeId, OutputBits)>,
    /// The sets of results for which the engine cannot run up to it, or from it. 0 for none.
    refused_for: [AtomicU64; REFUSALS_MAX],
}

impl Proposed {
    /// Looks for the boundaries of a graph.
    pub fn of(graph: &GraphProto) -> Proposed {
        Proposed { boundaries: boundaries(graph), results: names(&graph.output).map(str::to_owned).collect() }
    }
}

/// The end of an attempt to run in stages.
enum End {
    Done(Vec<Value>),
    /// The engine does not continue from a boundary, and the run has to be done without that boundary.
    Again,
    /// This run has to be done without any boundary.
    GivenUp,
}

impl Staged {
    /// A loaded graph, with the boundaries that were proposed for it before it was loaded.
    pub fn new(model: Model, proposed: Proposed, bound: CostBound) -> Staged {
        let stop = |boundary: Boundary| {
            let known = |(name, bits): (String, OutputBits)| Some((model.find_node(&name)?, bits));
            let values = boundary.values.into_iter().map(known).collect::<Option<_>>()?;
            Some(Stop { values, refused_for: Default::default() })
        };
        let stops: Vec<Stop> = proposed.boundaries.into_iter().filter_map(stop).collect();
        let mut results: HashMap<NodeId, OutputBits> = HashMap::new();
        for (at, name) in proposed.results.iter().enumerate().filter(|_| !stops.is_empty()) {
            if let Some(id) = model.find_node(name) {
                *results.entry(id).or_default() |= bit(at);
            }
        }
        Staged { model, stops, results, pace: Pace::new(bound) }
    }

    /// The graph.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Whether a run with these inputs and outputs may be interrupted. The inputs come with the numbers of their dimensions.
    pub fn can_be_ended<D: Iterator<Item = usize>>(
        &self,
        inputs: impl Iterator<Item = (NodeId, D)>,
        wanted: impl Iterator<Item = NodeId>,
    ) -> bool {
        if self.stops.is_empty() {
            return false;
        }
        let mut classifier = self.pace.classifier();
        inputs.for_each(|(id, dims)| classifier.input(id, dims));
        wanted.for_each(|id| classifier.wanted(id));
        !self.pace.is_whole(classifier.class())
    }

    /// Computes the results. The run can be ended between stages.
    pub fn run(
        &self,
        inputs: Vec<(NodeId, ValueOrView<'_>)>,
        wanted: &[NodeId],
        conditions: &Conditions<'_>,
    ) -> Result<Vec<Value>, Fault> {
        if self.stops.is_empty() {
            return self.whole(inputs, wanted, conditions.options);
        }
        let class = self.class(&inputs, wanted);
        let (stops, bits, mut refused) = (self.pace.stops(class), self.bits(wanted), Vec::new());
        let attempts = if stops == Stops::None { 0 } else { 1 + RESTARTS_MAX };
        for _ in 0..attempts {
            let mut times = vec![Duration::ZERO; self.stops.len() + 1];
            match self.in_stages(&inputs, wanted, &stops, conditions, &mut refused, &mut times)? {
                End::Done(done) => {
                    self.refuse(&refused, bits);
                    self.pace.note(class, &times, stops == Stops::All);
                    return Ok(done);
                }
                End::Again => {}
                End::GivenUp => break,
            }
        }
        conditions.check()?;
        let begun = Instant::now();
        let done = self.whole(inputs, wanted, conditions.options)?;
        self.refuse(&refused, bits);
        self.pace.note(class, &[begun.elapsed()], false);
        Ok(done)
    }

    fn class(&self, inputs: &[(NodeId, ValueOrView<'_>)], wanted: &[NodeId]) -> Class {
        let mut classifier = self.pace.classifier();
        for (id, value) in inputs {
            classifier.input(*id, value.as_view().shape().iter().copied());
        }
        for id in wanted {
            classifier.wanted(*id);
        }
        classifier.class()
    }

    /// Records that these boundaries are of no use for these results. A run has succeeded without them, so the request was not at fault.
    fn refuse(&self, refused: &[usize], bits: OutputBits) {
        refused.iter().filter_map(|at| self.stops.get(*at)).for_each(|stop| stop.refuse(bits));
    }

    fn whole(
        &self,
        inputs: Vec<(NodeId, ValueOrView<'_>)>,
        wanted: &[NodeId],
        options: &RunOptions,
    ) -> Result<Vec<Value>, Fault> {
        self.model.run(inputs, wanted, Some(options.clone())).map_err(|error| failed(&error))
    }

    fn in_stages(
        &self,
        given: &[(NodeId, ValueOrView<'_>)],
        wanted: &[NodeId],
        stops: &Stops,
        conditions: &Conditions<'_>,
        refused: &mut Vec<usize>,
        times: &mut [Duration],
    ) -> Result<End, Fault> {
        let bits = self.bits(wanted);
        let (mut computed, mut last): (HashMap<NodeId, Value>, Option<usize>) = (HashMap::new(), None);
        let is_chosen = |at: &usize| match stops {
            Stops::None => false,
            Stops::All => true,
            Stops::Behind(chosen) => chosen.binary_search(at).is_ok(),
        };
        // The number of boundaries that were refused before the last stage ended.
        let (mut known, mut begun) = (refused.len(), Instant::now());
        for (at, stop) in self.stops.iter().enumerate().filter(|(at, _)| is_chosen(at)) {
            if refused.contains(&at) || stop.is_refused(bits) {
                continue;
            }
            let passing: Vec<NodeId> = stop.needed(bits).collect();
            let is_there = |id: &NodeId| computed.contains_key(id) || given.iter().any(|(had, _)| had == id);
            let next: Vec<NodeId> = passing.iter().copied().filter(|id| !is_there(id)).collect();
            // The request left out an input. Only for a whole run does the engine decide whether that is allowed.
            if next.iter().any(|id| self.model.input_ids().contains(id)) {
                return Ok(End::GivenUp);
            }
            match self.stage(given, &computed, last, bits, &next, conditions)? {
                Ok(made) => computed.extend(next.into_iter().zip(made)),
                Err(error) if error.kind() == RunErrorKind::PlanningError => {
                    refused.push(at);
                    continue;
                }
                Err(error) => return begun_wrong(last, &error, refused),
            }
            computed.retain(|id, _| passing.contains(id));
            (last, known) = (Some(at), refused.len());
            times.iter_mut().skip(at).take(1).for_each(|time| *time = begun.elapsed());
            begun = Instant::now();
        }
        let next: Vec<NodeId> = wanted.iter().copied().filter(|id| !computed.contains_key(id)).collect();
        match self.stage(given, &computed, last, bits, &next, conditions)? {
            Ok(made) => computed.extend(next.into_iter().zip(made)),
            Err(error) => {
                // The boundaries after this stage's start may have been refused because of that start, so they are not recorded.
                refused.truncate(known);
                return begun_wrong(last, &error, refused);
            }
        }
        times.iter_mut().last().into_iter().for_each(|time| *time = begun.elapsed());
        let results: Option<Vec<Value>> = wanted.iter().map(|id| computed.remove(id)).collect();
        Ok(End::Done(results.ok_or_else(|| Fault::Failed("an output of the graph is missing".into()))?))
    }

    /// Computes values from what passed the last boundary.
    fn stage(
        &self,
        given: &[(NodeId, ValueOrView<'_>)],
        computed: &HashMap<NodeId, Value>,
        last: Option<usize>,
        bits: OutputBits,
        next: &[NodeId],
        conditions: &Conditions<'_>,
    ) -> Result<Result<Vec<Value>, RunError>, Fault> {
        conditions.check()?;
        if next.is_empty() {
            return Ok(Ok(Vec::new()));
        }
        let had = |id: NodeId| {
            let of_run = given.iter().find(|(known, _)| *known == id).map(|(_, value)| value.as_view());
            Some((id, ValueOrView::View(computed.get(&id).map(Value::as_view).or(of_run)?)))
        };
        let inputs: Vec<(NodeId, ValueOrView<'_>)> = match last.and_then(|at| self.stops.get(at)) {
            Some(stop) => stop.needed(bits).filter_map(had).collect(),
            None => given.iter().map(|(id, value)| (*id, ValueOrView::View(value.as_view()))).collect(),
        };
        Ok(self.model.run(inputs, next, Some(conditions.options.clone())))
    }

    fn bits(&self, wanted: &[NodeId]) -> OutputBits {
        wanted.iter().fold(0, |all, id| all | self.results.get(id).copied().unwrap_or(OutputBits::MAX))
    }
}

/// Decides what follows from the error of a stage. If the engine refuses the values that passed the boundary at its start, the request is not at
/// fault.
fn begun_wrong(last: Option<usize>, error: &RunError, refused: &mut Vec<usize>) -> Result<End, Fault> {
    match (last, error.kind()) {
        (Some(at), RunErrorKind::PlanningError) => {
            refused.push(at);
            Ok(End::Again)
        }
        // The graph declares shapes or types of inner values that are wrong for this run. They may be right for other runs.
        (Some(_), RunErrorKind::InvalidInput) => Ok(End::GivenUp),
        _ => Err(failed(error)),
    }
}

impl Stop {
    /// Whether it is of no use for these results.
    fn is_refused(&self, bits: OutputBits) -> bool {
        // If the engine refuses it for some results, it refuses it for a larger set too.
        self.refused_for.iter().map(|of| of.load(Ordering::Relaxed)).any(|of| of != 0 && of & !bits == 0)
    }

    /// Notes that it is of no use for these results.
    fn refuse(&self, bits: OutputBits) {
        if self.is_refused(bits) {
            return;
        }
        let take = |of: &AtomicU64| of.compare_exchange(0, bits, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        self.refused_for.iter().any(take);
    }

    /// The values that pass it on the way to these results.
    fn needed(&self, bits: OutputBits) -> impl Iterator<Item = NodeId> {
        self.values.iter().filter(move |(_, of)| of & bits != 0).map(|(id, _)| *id)
    }
}

fn failed(error: &RunError) -> Fault {
    Fault::Failed(error.to_string())
}

#[cfg(test)]
mod tests;
