//! What does the JSON object of all results hold?
//!
//! Names end with their unit. A figure that nobody could measure is `null`. The fields are in `docs/bench.md`.

use serde_json::{Map, Value, json};

use crate::break_even::break_even;
use crate::options::Protocol;
use crate::results::{About, Client, ConfigPoint, Cost, Gpu, Level, Point, Results, Server, SizePoint, SizeSweep};

/// All results, in one line.
pub(crate) fn object(results: &Results) -> String {
    let percentile = results.about.percentile;
    let points: Vec<Value> = results.points.iter().map(|one| point(one, percentile)).collect();
    let mut out = json!({"about": about(&results.about), "points": points});
    if !results.sizes.is_empty() {
        out["sizes"] = results.sizes.iter().map(|sweep| sizes(sweep, percentile)).collect();
    }
    if !results.configs.is_empty() {
        out["configs"] = results.configs.iter().map(|one| config(one, percentile)).collect();
    }
    out.to_string() + "\n"
}

fn about(about: &About) -> Value {
    let machine = &about.machine;
    json!({
        "date": about.date,
        "machine": {
            "processor": machine.processor,
            "cores": machine.cores,
            "kernel": machine.kernel,
            "load_averages": machine.load,
        },
        "generator": concat!("nerite ", env!("CARGO_PKG_VERSION")),
        "server": about.server,
        "address": about.address,
        "model": about.model,
        "version": about.version,
        "protocol": protocol(about.protocol),
        "memory": about.memory.name(),
        "batch_rows": about.batch,
        "stable_percentile": about.percentile,
    })
}

fn protocol(protocol: Protocol) -> String {
    protocol.name().to_lowercase()
}

fn point(point: &Point, percentile: Option<u8>) -> Value {
    let (mode, value) = match point.level {
        Level::Concurrency(clients) => ("concurrency", json!(clients)),
        Level::Rate(rate) => ("request_rate", json!(rate)),
        Level::Intervals(rate) => ("request_intervals", json!(rate)),
    };
    json!({
        "mode": mode,
        "level": value,
        "is_stable": point.is_stable,
        "client": client(&point.client, percentile),
        "server": point.server.as_ref().map(server),
        "cost_per_request": cost_per_request(&point.cost),
        "cost": cost(&point.cost),
        "gpus": point.gpus.as_ref().map(|gpus| gpus.iter().map(gpu).collect::<Vec<_>>()),
    })
}

fn client(client: &Client, percentile: Option<u8>) -> Value {
    let percentiles: Map<String, Value> = client
        .percentiles_us(percentile)
        .into_iter()
        .map(|(percentile, us)| (format!("p{percentile}_us"), json!(us)))
        .collect();
    json!({
        "seconds": client.seconds,
        "requests": client.requests,
        "inferences_per_second": client.throughput,
        "responses_per_second": client.response_throughput,
        "sequences": client.sequences,
        "late_requests": client.late,
        "latency": {
            "mean_us": client.mean_us,
            "deviation_us": client.deviation_us,
            "min_us": client.latencies.min() as f64 / 1e3,
            "max_us": client.latencies.max() as f64 / 1e3,
            "percentiles": percentiles,
        },
        "send_us": client.send_us,
        "wait_us": client.wait_us,
        "receive_us": client.receive_us,
    })
}

fn server(one: &Server) -> Value {
    json!({
        "model": one.model,
        "version": one.version,
        "inferences": one.inferences,
        "executions": one.executions,
        "successes": one.successes,
        "failures": one.failures,
        "request_us": one.request_us,
        "queue_us": one.queue_us,
        "compute_input_us": one.input_us,
        "compute_infer_us": one.infer_us,
        "compute_output_us": one.output_us,
        "cache": one.cache.map(|cache| json!({
            "hits": cache.hits,
            "misses": cache.misses,
            "hit_us": cache.hit_us,
            "miss_us": cache.miss_us,
        })),
        "batches": one.batches.iter().map(|&(rows, executions)| json!({"rows": rows, "executions": executions})).collect::<Vec<_>>(),
        "composing_models": one.composing.iter().map(server).collect::<Vec<_>>(),
    })
}

fn cost_per_request(cost: &Cost) -> Value {
    json!({
        "client_cpu_us": cost.client_cpu_us,
        "client_wake_ups": cost.client_wake_ups,
        "server_cpu_us": cost.server_cpu_us,
        "server_wake_ups": cost.server_wake_ups,
        "server_copied_bytes": cost.copied_bytes,
    })
}

fn cost(cost: &Cost) -> Value {
    json!({
        "cores_idle_share": cost.idle,
        "is_one_core": cost.is_one_core,
        "client_resident_bytes": cost.client_bytes,
        "server_resident_bytes": cost.server_bytes,
    })
}

fn gpu(gpu: &Gpu) -> Value {
    json!({
        "uuid": gpu.uuid,
        "utilization_share": gpu.utilization,
        "power_watts": gpu.power_watts,
        "used_bytes_max": gpu.used_bytes,
        "total_bytes": gpu.total_bytes,
    })
}

fn sizes(sweep: &SizeSweep, percentile: Option<u8>) -> Value {
    let size = |one: &SizePoint| json!({"bytes": one.bytes, "inline": point(&one.inline, percentile), "shared": point(&one.shared, percentile)});
    json!({
        "protocol": protocol(sweep.protocol),
        "break_even_bytes": break_even(&sweep.points),
        "points": sweep.points.iter().map(size).collect::<Vec<_>>(),
    })
}

fn config(config: &ConfigPoint, percentile: Option<u8>) -> Value {
    json!({
        "batch_rows_max": config.batch,
        "instances": config.instances,
        "delay_us": config.delay_us,
        "is_best": config.is_best,
        "is_front": config.is_front,
        "point": point(&config.point, percentile),
    })
}

#[cfg(test)]
mod tests;
