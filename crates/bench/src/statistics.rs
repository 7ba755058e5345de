//! What did the server count between two moments?

use nerite_client::report::{Duration, StatisticsReport};

use crate::caller::Caller;
use crate::model::Model;
use crate::options::Options;
use crate::results::{Cache, Server};

/// The server's counts so far, of the model first, and then of the models that it uses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts(Vec<StatisticsReport>);

/// The models whose counts are read. The measured model is the first.
#[derive(Clone, Debug)]
pub(crate) struct Watched(Vec<Model>);

impl Watched {
    pub(crate) fn new(model: &Model, options: &Options, caller: &Caller) -> Result<Watched, String> {
        let mut models = vec![model.clone()];
        let mut wanted: Vec<(String, String)> = model.steps.iter().chain(&options.composing).cloned().collect();
        // The steps of a step that is an ensemble too follow it.
        while !wanted.is_empty() {
            let (name, version) = wanted.remove(0);
            let step = Model::read(caller, &name, &version)?;
            let is_known = |known: &Model| (&known.name, &known.version) == (&step.name, &step.version);
            if !models.iter().any(is_known) {
                wanted.splice(..0, step.steps.iter().cloned());
                models.push(step);
            }
        }
        Ok(Watched(models))
    }

    pub(crate) fn read(&self, caller: &Caller) -> Result<Counts, String> {
        let one = |Model { name, version, .. }: &Model| {
            let reports = caller.statistics(name)?;
            let found = reports.into_iter().find(|report| report.version.to_string() == *version);
            found.ok_or_else(|| format!("the server has no statistics of model '{name}', version {version}"))
        };
        Ok(Counts(self.0.iter().map(one).collect::<Result<_, String>>()?))
    }

    /// What was counted between two readings.
    pub(crate) fn difference(&self, before: &Counts, after: &Counts) -> Option<Server> {
        let servers = before.0.iter().zip(&after.0).zip(&self.0);
        let mut servers = servers.map(|((before, after), model)| difference(before, after, model.has_cache));
        let first = servers.next()?;
        Some(Server { composing: servers.collect(), ..first })
    }
}

fn difference(before: &StatisticsReport, after: &StatisticsReport, has_cache: bool) -> Server {
    let count = |of: fn(&StatisticsReport) -> u64| of(after).saturating_sub(of(before));
    let successes = count(|report| report.success.count);
    let us = |of: fn(&StatisticsReport) -> Duration| {
        let (before, after) = (of(before), of(after));
        let count = after.count.saturating_sub(before.count).max(1);
        after.ns.saturating_sub(before.ns) as f64 / 1e3 / count as f64
    };
    let hits = count(|report| report.cache_hit.count);
    let misses = count(|report| report.cache_miss.count);
    let batches = after.batches.iter().map(|batch| {
        let earlier = before.batches.iter().find(|earlier| earlier.batch_size == batch.batch_size);
        let ran = batch.compute_infer.count - earlier.map_or(0, |earlier| earlier.compute_infer.count);
        (batch.batch_size, ran)
    });
    Server {
        model: after.name.clone(),
        version: after.version.to_string(),
        inferences: count(|report| report.inference_count),
        executions: count(|report| report.execution_count),
        successes,
        failures: count(|report| report.fail.count),
        request_us: us(|report| report.success),
        queue_us: us(|report| report.queue),
        input_us: us(|report| report.compute_input),
        infer_us: us(|report| report.compute_infer),
        output_us: us(|report| report.compute_output),
        cache: has_cache.then(|| Cache {
            hits,
            misses,
            hit_us: us(|report| report.cache_hit),
            miss_us: us(|report| report.cache_miss),
        }),
        batches: batches.filter(|(_, ran)| *ran > 0).collect(),
        composing: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_a_request_between_the_readings() {
        let report = |count: u64| StatisticsReport {
            version: 1,
            inference_count: 4 * count,
            execution_count: count / 2,
            success: Duration { count, ns: 100_000 * count },
            queue: Duration { count, ns: 10_000 * count },
            ..StatisticsReport::default()
        };
        let found = difference(&report(10), &report(30), false);
        assert_eq!((found.inferences, found.executions, found.successes), (80, 10, 20));
        assert_eq!((found.request_us, found.queue_us), (100.0, 10.0));
        assert!(difference(&report(10), &report(10), false).request_us < f64::EPSILON);
    }
}
