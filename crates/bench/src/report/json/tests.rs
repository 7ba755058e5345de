//! Does the object have all figures under their names?

use super::*;
use crate::results::Cache;
use crate::samples;

fn parsed(results: &Results) -> Value {
    serde_json::from_str(&object(results)).expect("it is JSON")
}

#[test]
fn the_setup_is_in_it() {
    let expect = json!({
        "date": "2026-11-30T13:00:00Z",
        "machine": {"processor": "A <fast> one", "cores": 2, "kernel": "6.1.0", "load_averages": [0.5, 0.25, 0.0]},
        "generator": format!("nerite {}", env!("CARGO_PKG_VERSION")),
        "server": "nerite 1.0.0",
        "address": "localhost:8000",
        "model": "simple",
        "version": "",
        "protocol": "http",
        "memory": "inline",
        "batch_rows": 1,
        "stable_percentile": null,
    });
    assert_eq!(parsed(&samples::results())["about"], expect);
}

/// A level with round numbers.
fn point() -> Point {
    let mut point = samples::point(1, 1.0);
    let client = &mut point.client;
    client.latencies.reset();
    client.latencies.record(1000).expect("the histogram grows");
    (client.mean_us, client.deviation_us, client.throughput) = (1.0, 0.5, 100.0);
    (client.send_us, client.wait_us, client.receive_us) = (0.25, 0.5, 0.125);
    let server = point.server.as_mut().expect("samples have a server");
    (server.request_us, server.queue_us) = (1.0, 2.0);
    (server.input_us, server.infer_us, server.output_us) = (3.0, 4.0, 5.0);
    server.cache = Some(Cache { hits: 1, misses: 2, hit_us: 3.0, miss_us: 4.0 });
    point.cost.server_wake_ups = None;
    point.gpus = Some(vec![Gpu {
        uuid: "a".to_owned(),
        utilization: 0.5,
        power_watts: 85.0,
        used_bytes: 1.0,
        total_bytes: 2.0,
    }]);
    point
}

#[test]
fn a_level_is_in_it() {
    let expect = json!({
        "mode": "concurrency",
        "level": 1,
        "is_stable": true,
        "client": {
            "seconds": 2.0,
            "requests": 300,
            "inferences_per_second": 100.0,
            "responses_per_second": null,
            "sequences": null,
            "late_requests": 0,
            "latency": {
                "mean_us": 1.0,
                "deviation_us": 0.5,
                "min_us": 1.0,
                "max_us": 1.0,
                "percentiles": {"p50_us": 1.0, "p90_us": 1.0, "p95_us": 1.0, "p99_us": 1.0},
            },
            "send_us": 0.25,
            "wait_us": 0.5,
            "receive_us": 0.125,
        },
        "server": {
            "model": "simple",
            "version": "1",
            "inferences": 301,
            "executions": 301,
            "successes": 301,
            "failures": 0,
            "request_us": 1.0,
            "queue_us": 2.0,
            "compute_input_us": 3.0,
            "compute_infer_us": 4.0,
            "compute_output_us": 5.0,
            "cache": {"hits": 1, "misses": 2, "hit_us": 3.0, "miss_us": 4.0},
            "batches": [{"rows": 1, "executions": 301}],
            "composing_models": [],
        },
        "cost_per_request": {
            "client_cpu_us": 12.34,
            "client_wake_ups": 1.0,
            "server_cpu_us": 45.67,
            "server_wake_ups": null,
            "server_copied_bytes": 128.0,
        },
        "cost": {
            "cores_idle_share": 0.25,
            "is_one_core": false,
            "client_resident_bytes": 9 << 20,
            "server_resident_bytes": 80 << 20,
        },
        "gpus": [{"uuid": "a", "utilization_share": 0.5, "power_watts": 85.0, "used_bytes_max": 1.0, "total_bytes": 2.0}],
    });
    assert_eq!(parsed(&Results { points: vec![point()], ..samples::results() })["points"], json!([expect]));
}

#[test]
fn loads_have_their_modes() {
    let levels = [Level::Concurrency(4), Level::Rate(50.5), Level::Intervals(400.0)];
    let points = levels.map(|level| Point { level, server: None, ..samples::point(1, 100.0) });
    let found = parsed(&Results { points: points.into(), ..samples::results() });
    let modes =
        found["points"].as_array().expect("a list").iter().map(|one| json!([one["mode"], one["level"], one["server"]]));
    assert_eq!(
        modes.collect::<Vec<_>>(),
        [
            json!(["concurrency", 4, null]),
            json!(["request_rate", 50.5, null]),
            json!(["request_intervals", 400.0, null])
        ]
    );
}

#[test]
fn sweeps_are_in_it_where_there_are_some() {
    let found = parsed(&samples::results());
    let sizes = &found["sizes"][0];
    assert_eq!((&sizes["protocol"], &sizes["points"][1]["bytes"]), (&json!("http"), &json!(4096)));
    assert!((sizes["break_even_bytes"].as_f64().expect("lines cross") / 1024.0 - 20.96).abs() < 0.1, "{sizes}");
    assert_eq!(sizes["points"][1]["shared"]["mode"], "concurrency");
    let config = &found["configs"][2];
    assert_eq!(
        json!([
            config["batch_rows_max"],
            config["instances"],
            config["delay_us"],
            config["is_best"],
            config["is_front"]
        ]),
        json!([8, 1, 100, true, true])
    );
    assert_eq!(config["point"]["level"], 8);
    let without = parsed(&Results { sizes: Vec::new(), configs: Vec::new(), ..samples::results() });
    assert_eq!((without.get("sizes"), without.get("configs")), (None, None));
}
