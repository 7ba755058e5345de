//! Which configuration of the model is best under a bound on latency?

use serde_json::{Value, json};

use crate::caller::Caller;
use crate::options::Options;
use crate::pareto::pareto_front;
use crate::profile::{Observer, measure_first};
use crate::results::ConfigPoint;

/// Batch sizes at most.
const BATCHES: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// How long a batch waits for more requests, in µs. Without batches there is no delay.
const DELAYS_US: [u64; 3] = [0, 100, 1000];

/// Measures the model with each configuration, and then gives it its own again.
pub(crate) fn configs(
    options: &Options,
    caller: &Caller,
    observer: &mut dyn Observer,
) -> Result<Vec<ConfigPoint>, String> {
    let own = caller.config_json(&options.model)?;
    let batch_max = own["max_batch_size"].as_u64().unwrap_or_default() as usize;
    if batch_max == 0 {
        return Err(format!(
            "--sweep config needs a model with batches, and model '{}' has max_batch_size 0",
            options.model
        ));
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut points = Vec::new();
    let done: Result<(), String> = candidates(batch_max, cores)
        .into_iter()
        .filter(|(batch, ..)| *batch >= options.batch)
        .try_for_each(|candidate| {
            if observer.is_interrupted() {
                return Ok(());
            }
            let (batch, instances, delay_us) = candidate;
            caller.load_model(&options.model, Some(&changed(&own, candidate).to_string()))?;
            let point = measure_first(options, observer)?;
            points.push(ConfigPoint { batch, instances, delay_us, point, is_best: false, is_front: false });
            Ok(())
        });
    // A load without a configuration keeps the last one, if the model's files are the same.
    caller.load_model(&options.model, Some(&own.to_string())).map_err(|reason: String| {
        format!("the model keeps the last configuration that was tried, as it cannot be loaded again: {reason}")
    })?;
    done?;
    mark(&mut points, options);
    Ok(points)
}

/// Batch size, instances and delay of each configuration.
fn candidates(batch_max: usize, cores: usize) -> Vec<(usize, usize, u64)> {
    let mut instances = vec![1, cores.div_ceil(2), cores];
    instances.dedup();
    let mut all = Vec::new();
    for batch in BATCHES.into_iter().filter(|batch| *batch <= batch_max) {
        for instances in &instances {
            let delays = if batch == 1 { &DELAYS_US[..1] } else { &DELAYS_US };
            all.extend(delays.iter().map(|delay_us| (batch, *instances, *delay_us)));
        }
    }
    all
}

/// The model's own configuration with these changes.
fn changed(own: &Value, (batch, instances, delay_us): (usize, usize, u64)) -> Value {
    let mut config = own.clone();
    config["max_batch_size"] = json!(batch);
    let group = own["instance_group"].get(0).cloned();
    let mut group = group.unwrap_or_else(|| json!({"kind": "KIND_CPU"}));
    group["count"] = json!(instances);
    config["instance_group"] = json!([group]);
    if let Some(members) = config.as_object_mut() {
        members.remove("dynamic_batching");
    }
    if batch > 1 {
        config["dynamic_batching"] = json!({"max_queue_delay_microseconds": delay_us});
    }
    config
}

/// Marks the configurations that no other is better than, and the best one: that with the highest throughput within the latency, or else with the lowest
/// latency.
fn mark(configs: &mut [ConfigPoint], options: &Options) {
    let (percentile, max) = (options.percentile, options.latency_max);
    let latency_max_us = max.map_or(f64::INFINITY, |max| max.as_secs_f64() * 1e6);
    let figures =
        |config: &ConfigPoint| (config.point.client.throughput, config.point.client.stabilized_us(percentile));
    let points: Vec<(f64, f64)> = configs.iter().map(figures).collect();
    for (config, is_front) in configs.iter_mut().zip(pareto_front(&points)) {
        config.is_front = is_front;
    }
    let within = points.iter().enumerate().filter(|(_, (_, latency))| *latency <= latency_max_us);
    let best = within.max_by(|(_, one), (_, other)| one.0.total_cmp(&other.0));
    let best = best.or_else(|| points.iter().enumerate().min_by(|(_, one), (_, other)| one.1.total_cmp(&other.1)));
    if let Some(config) = best.map(|(at, _)| at).and_then(|at| configs.get_mut(at)) {
        config.is_best = true;
    }
}

/// The lines of `config.pbtxt` for this configuration.
pub(crate) fn best_config(best: &ConfigPoint) -> String {
    let batching = match (best.batch, best.delay_us) {
        (1, _) => String::new(),
        (_, 0) => "dynamic_batching { }\n".to_owned(),
        (_, delay_us) => format!("dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}\n"),
    };
    format!("max_batch_size: {}\ninstance_group [ {{ count: {} }} ]\n{batching}", best.batch, best.instances)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_batches_there_is_no_delay() {
        let all = candidates(2, 2);
        assert_eq!(
            all,
            [(1, 1, 0), (1, 2, 0), (2, 1, 0), (2, 1, 100), (2, 1, 1000), (2, 2, 0), (2, 2, 100), (2, 2, 1000)]
        );
    }

    #[test]
    fn what_is_not_varied_stays() {
        let own = json!({"max_batch_size": 8, "dynamic_batching": {}, "instance_group": [{"kind": "KIND_CPU", "name": "a"}], "input": [1]});
        let expect = json!({"max_batch_size": 1, "instance_group": [{"kind": "KIND_CPU", "name": "a", "count": 2}], "input": [1]});
        assert_eq!(changed(&own, (1, 2, 0)), expect);
        assert_eq!(changed(&own, (4, 1, 100))["dynamic_batching"]["max_queue_delay_microseconds"], 100);
    }
}
