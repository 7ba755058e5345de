//! How does a graph run in stages, so that its run can be ended in between?
//!
//! All stages are runs of the same graph in the engine, with the same weights. So the results are the same whether a run has stages or not. Where the
//! optimiser removed a value that passes a boundary, the engine makes no plan for it. Such a boundary is not used again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rten::{Model, NodeId, RunError, RunErrorKind, RunOptions, Value, ValueOrView};
use rten_onnx::onnx::GraphProto;
use rten_tensor::Layout;

use crate::conditions::{Conditions, Fault};
use crate::cut::names;
use crate::pace::{Pace, Stops};
use crate::stages::{Boundary, OutputBits, bit, boundaries};

/// A graph in the engine.
pub struct Staged {
    model: Model,
    stops: Vec<Stop>,
    /// The results, by which values are needed.
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
    /// What passes it.
    values: Vec<(NodeId, OutputBits)>,
    /// Whether the engine cannot run up to it, or from it.
    is_unusable: AtomicBool,
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
    /// A boundary was of no use, and the run has to be done without it.
    Unusable,
}

impl Staged {
    /// The loaded graph, with the boundaries that were proposed before it was loaded.
    pub fn new(model: Model, proposed: Proposed) -> Staged {
        let stop = |boundary: Boundary| {
            let known = |(name, bits): (String, OutputBits)| Some((model.find_node(&name)?, bits));
            let values = boundary.values.into_iter().map(known).collect::<Option<_>>()?;
            Some(Stop { values, is_unusable: AtomicBool::new(false) })
        };
        let stops: Vec<Stop> = proposed.boundaries.into_iter().filter_map(stop).collect();
        let mut results: HashMap<NodeId, OutputBits> = HashMap::new();
        for (at, name) in proposed.results.iter().enumerate().filter(|_| !stops.is_empty()) {
            if let Some(id) = model.find_node(name) {
                *results.entry(id).or_default() |= bit(at);
            }
        }
        Staged { model, stops, results, pace: Pace::default() }
    }

    /// The graph.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Whether a run whose inputs have this many elements may be interrupted.
    pub fn can_be_ended(&self, size: usize) -> bool {
        !self.stops.is_empty() && !self.pace.is_quick(size)
    }

    /// The results. Between stages the run ends if it is told to.
    pub fn run(
        &self,
        inputs: Vec<(NodeId, ValueOrView<'_>)>,
        wanted: &[NodeId],
        conditions: &Conditions<'_>,
    ) -> Result<Vec<Value>, Fault> {
        if self.stops.is_empty() {
            return self.whole(inputs, wanted, conditions.options);
        }
        let elements = |value: &ValueOrView<'_>| {
            value.as_view().shape().iter().fold(1, |all: usize, dim| all.saturating_mul(*dim))
        };
        let size = inputs.iter().fold(0, |all: usize, (_, value)| all.saturating_add(elements(value)));
        let stops = self.pace.stops(size);
        // Each attempt that fails leaves one boundary less.
        for _ in self.stops.iter().filter(|_| stops != Stops::None) {
            let (mut times, begun) = (vec![Duration::ZERO; self.stops.len() + 1], Instant::now());
            if let End::Done(done) = self.in_stages(&inputs, wanted, &stops, conditions, &mut times)? {
                let is_complete = stops == Stops::All;
                self.pace.note(size, begun.elapsed(), is_complete.then_some(&times[..]));
                return Ok(done);
            }
        }
        let begun = Instant::now();
        let done = self.whole(inputs, wanted, conditions.options)?;
        self.pace.note(size, begun.elapsed(), None);
        Ok(done)
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
        times: &mut [Duration],
    ) -> Result<End, Fault> {
        let bits = self.bits(wanted);
        let (mut computed, mut last): (HashMap<NodeId, Value>, Option<&Stop>) = (HashMap::new(), None);
        let is_chosen = |at: &usize| match stops {
            Stops::None => false,
            Stops::All => true,
            Stops::Behind(chosen) => chosen.binary_search(at).is_ok(),
        };
        let mut begun = Instant::now();
        for (at, stop) in self.stops.iter().enumerate().filter(|(at, _)| is_chosen(at)) {
            if stop.is_unusable.load(Ordering::Relaxed) {
                continue;
            }
            let passing: Vec<NodeId> = stop.needed(bits).collect();
            let is_there = |id: &NodeId| computed.contains_key(id) || given.iter().any(|(had, _)| had == id);
            let next: Vec<NodeId> = passing.iter().copied().filter(|id| !is_there(id)).collect();
            match self.stage(given, &computed, last, bits, &next, conditions)? {
                Ok(made) => computed.extend(next.into_iter().zip(made)),
                Err(error) if error.kind() == RunErrorKind::PlanningError => {
                    stop.is_unusable.store(true, Ordering::Relaxed);
                    continue;
                }
                Err(error) => return self.refused(last, &error),
            }
            computed.retain(|id, _| passing.contains(id));
            last = Some(stop);
            times.iter_mut().skip(at).take(1).for_each(|time| *time = begun.elapsed());
            begun = Instant::now();
        }
        let next: Vec<NodeId> = wanted.iter().copied().filter(|id| !computed.contains_key(id)).collect();
        match self.stage(given, &computed, last, bits, &next, conditions)? {
            Ok(made) => computed.extend(next.into_iter().zip(made)),
            Err(error) => return self.refused(last, &error),
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
        last: Option<&Stop>,
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
        let inputs: Vec<(NodeId, ValueOrView<'_>)> = match last {
            Some(stop) => stop.needed(bits).filter_map(had).collect(),
            None => given.iter().map(|(id, value)| (*id, ValueOrView::View(value.as_view()))).collect(),
        };
        Ok(self.model.run(inputs, next, Some(conditions.options.clone())))
    }

    /// A stage failed. If the engine refuses what passed the boundary where the stage began, that is no fault of the request.
    fn refused(&self, last: Option<&Stop>, error: &RunError) -> Result<End, Fault> {
        match (last, error.kind()) {
            (Some(stop), RunErrorKind::PlanningError) => stop.is_unusable.store(true, Ordering::Relaxed),
            // The graph declares wrong shapes or types for some inner values, and perhaps for all.
            (Some(_), RunErrorKind::InvalidInput) => {
                self.stops.iter().for_each(|stop| stop.is_unusable.store(true, Ordering::Relaxed));
            }
            _ => return Err(failed(error)),
        }
        Ok(End::Unusable)
    }

    fn bits(&self, wanted: &[NodeId]) -> OutputBits {
        wanted.iter().fold(0, |all, id| all | self.results.get(id).copied().unwrap_or(OutputBits::MAX))
    }
}

impl Stop {
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
