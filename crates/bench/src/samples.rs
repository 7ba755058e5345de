//! Which results do tests of reports show?

use hdrhistogram::Histogram;

use crate::options::{Memory, Protocol};
use crate::results::{About, Client, ConfigPoint, Cost, Level, Machine, Point, Results, Server, SizePoint, SizeSweep};

/// Latencies of 100 requests around a median, in µs. The slowest takes four times as long.
fn latencies(median_us: f64) -> Histogram<u64> {
    let mut found = Histogram::new(3).expect("three digits are allowed");
    for request in 0..100_u32 {
        let factor = match f64::from(request) / 100.0 {
            share if share < 0.9 => 0.8 + 0.4 * share / 0.9,
            share => 1.2 + (share - 0.9) * 28.0,
        };
        found.record((median_us * factor * 1e3) as u64).expect("the histogram grows");
    }
    found
}

/// A level of load whose requests took this long at the median.
pub(crate) fn point(clients: usize, median_us: f64) -> Point {
    let latencies = latencies(median_us);
    let (mean_us, deviation_us) = (latencies.mean() / 1e3, latencies.stdev() / 1e3);
    let share = |part: f64| mean_us * part;
    let server = Server {
        model: "simple".to_owned(),
        version: "1".to_owned(),
        inferences: 301,
        executions: 301,
        successes: 301,
        request_us: share(0.6),
        queue_us: share(0.2),
        input_us: share(0.1),
        infer_us: share(0.2),
        output_us: share(0.05),
        batches: vec![(1, 301)],
        ..Server::default()
    };
    Point {
        level: Level::Concurrency(clients),
        client: Client {
            seconds: 2.0,
            requests: 300,
            throughput: clients as f64 * 1e6 / mean_us,
            response_throughput: None,
            latencies,
            mean_us,
            deviation_us,
            send_us: share(0.05),
            wait_us: share(0.85),
            receive_us: share(0.1),
            late: 0,
            sequences: None,
        },
        server: Some(server),
        cost: cost(),
        is_stable: true,
        gpus: None,
        records: None,
    }
}

fn cost() -> Cost {
    Cost {
        client_cpu_us: 12.34,
        client_wake_ups: 1.0,
        server_cpu_us: Some(45.67),
        server_wake_ups: Some(2.5),
        copied_bytes: Some(128.0),
        idle: 0.25,
        is_one_core: Some(false),
        client_bytes: 9 << 20,
        server_bytes: Some(80 << 20),
    }
}

/// Four levels, a sweep of sizes and one of configurations.
pub(crate) fn results() -> Results {
    let levels = [(1, 400.0), (2, 520.0), (4, 900.0), (8, 1900.0)];
    let about = About {
        date: "2026-11-30T13:00:00Z".to_owned(),
        machine: Machine {
            processor: "A <fast> one".to_owned(),
            cores: 2,
            kernel: "6.1.0".to_owned(),
            load: [0.5, 0.25, 0.0],
        },
        server: "nerite 1.0.0".to_owned(),
        address: "localhost:8000".to_owned(),
        model: "simple".to_owned(),
        version: String::new(),
        protocol: Protocol::Http,
        memory: Memory::Inline,
        batch: 1,
        percentile: None,
    };
    Results {
        about,
        points: levels.into_iter().map(|(clients, median_us)| point(clients, median_us)).collect(),
        sizes: vec![sizes(Protocol::Http, 120.0), sizes(Protocol::Grpc, 150.0)],
        configs: configs(),
    }
}

/// Sizes from 1 KiB to 16 MiB.
fn sizes(protocol: Protocol, base_us: f64) -> SizeSweep {
    let size = |exponent: u32| {
        let bytes = 1024_u64 << (2 * exponent);
        let inline = base_us + bytes as f64 / 2000.0;
        let shared = base_us * 1.1 + bytes as f64 / 40_000.0;
        SizePoint { bytes, inline: point(1, inline), shared: point(1, shared) }
    };
    SizeSweep { protocol, points: (0..8).map(size).collect() }
}

fn configs() -> Vec<ConfigPoint> {
    let found =
        [(1, 1, 0, 500.0, 2), (4, 1, 0, 700.0, 4), (8, 1, 100, 1100.0, 8), (8, 2, 0, 1500.0, 8), (1, 2, 0, 620.0, 2)];
    let measured: Vec<Point> = found.iter().map(|&(.., median_us, clients)| point(clients, median_us)).collect();
    let figures: Vec<_> = measured.iter().map(|one| (one.client.throughput, one.client.mean_us)).collect();
    let fronts = crate::pareto::pareto_front(&figures);
    std::iter::zip(found, std::iter::zip(measured, fronts))
        .map(|((batch, instances, delay_us, ..), (point, is_front))| ConfigPoint {
            batch,
            instances,
            delay_us,
            point,
            is_best: batch == 8 && is_front,
            is_front,
        })
        .collect()
}
