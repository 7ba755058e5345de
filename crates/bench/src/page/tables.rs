//! Which tables does the page have?

use std::fmt::Write as _;

use super::{escaped, level_name};
use crate::plots::{bytes, duration, quantity};
use crate::results::{About, ConfigPoint, Point, SizePoint, SizeSweep};

/// What was measured, where and when.
pub(super) fn setup(about: &About) -> String {
    let machine = &about.machine;
    let load: Vec<String> = machine.load.iter().map(|load| format!("{load:.2}")).collect();
    let version = if about.version.is_empty() { "latest" } else { &about.version };
    let stable = about.percentile.map_or("average".to_owned(), |percentile| format!("p{percentile}"));
    let rows = [
        ("Model", format!("{}, version {version}", about.model)),
        ("Server", format!("{} at {}", about.server, about.address)),
        ("Requests", format!("{}, batch of {}, tensors: {}", about.protocol.name(), about.batch, about.memory.name())),
        ("Latency held stable", stable),
        ("Load generator", concat!("nerite ", env!("CARGO_PKG_VERSION")).to_owned()),
        ("Machine", format!("{}, {} cores, Linux {}", machine.processor, machine.cores, machine.kernel)),
        ("Load averages before", load.join(", ")),
        ("Date", about.date.clone()),
    ];
    let mut out = String::from("<dl>\n");
    for (name, value) in rows {
        let _ = writeln!(out, "<dt>{name}</dt><dd>{}</dd>", escaped(&value));
    }
    out + "</dl>\n"
}

/// A row for each level of load.
pub(super) fn levels(points: &[Point]) -> String {
    let names = ["level", "requests", "inferences/s", "mean", "p50", "p90", "p95", "p99"];
    let rows = points.iter().map(|point| {
        let client = &point.client;
        let note = if point.is_stable { "" } else { " (not stable)" };
        let mut cells = vec![level_name(point.level) + note, client.requests.to_string(), whole(client.throughput)];
        cells.push(duration(client.mean_us));
        cells.extend(client.percentiles_us(None).into_iter().map(|(_, latency)| duration(latency)));
        cells
    });
    table(&names, rows)
}

/// What a request cost, in a row for each level of load.
pub(super) fn costs(points: &[Point]) -> String {
    let names = [
        "level",
        "client CPU",
        "server CPU",
        "client wake-ups",
        "server wake-ups",
        "server copies",
        "cores asleep",
        "client memory",
        "server memory",
    ];
    let rows = points.iter().map(|point| {
        let cost = &point.cost;
        vec![
            quantity(point.level.value()),
            duration(cost.client_cpu_us),
            known(cost.server_cpu_us, duration),
            quantity(cost.client_wake_ups),
            known(cost.server_wake_ups, quantity),
            known(cost.copied_bytes, bytes),
            format!("{:.0} %", cost.idle * 100.0),
            bytes(cost.client_bytes as f64),
            known(cost.server_bytes.map(|bytes| bytes as f64), bytes),
        ]
    });
    table(&names, rows) + one_core(points)
}

fn known(figure: Option<f64>, text: fn(f64) -> String) -> String {
    figure.map_or("–".to_owned(), text)
}

fn whole(figure: f64) -> String {
    format!("{figure:.0}")
}

fn one_core(points: &[Point]) -> &'static str {
    if points.iter().any(|point| point.cost.is_one_core == Some(true)) {
        "<p>Client and server ran on the same core.</p>\n"
    } else {
        ""
    }
}

/// A row for each size.
pub(super) fn sizes(sweep: &SizeSweep) -> String {
    let names = ["size", "p50 in the message", "p50 in shared memory", "p99 in the message", "p99 in shared memory"];
    let cells = |one: &SizePoint| {
        let latency = |point: &Point, percentile: f64| duration(point.client.percentile_us(percentile));
        let (inline, shared) = (&one.inline, &one.shared);
        let latencies = [latency(inline, 50.0), latency(shared, 50.0), latency(inline, 99.0), latency(shared, 99.0)];
        std::iter::once(bytes(one.bytes as f64)).chain(latencies).collect()
    };
    table(&names, sweep.points.iter().map(cells))
}

/// A row for each configuration.
pub(super) fn configs(configs: &[ConfigPoint], percentile: Option<u8>) -> String {
    let names = ["rows of a batch", "instances", "delay", "level", "inferences/s", "latency", ""];
    let cells = |one: &ConfigPoint| {
        let verdict = match (one.is_best, one.is_front) {
            (true, _) => "best",
            (false, true) => "front",
            (false, false) => "",
        };
        vec![
            one.batch.to_string(),
            one.instances.to_string(),
            duration(one.delay_us as f64),
            level_name(one.point.level),
            whole(one.point.client.throughput),
            duration(one.point.client.stabilized_us(percentile)),
            verdict.to_owned(),
        ]
    };
    table(&names, configs.iter().map(cells))
}

fn table(names: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut out = String::from("<div class=\"wide\">\n<table>\n<thead>");
    out += &row("th", names.iter().copied());
    out += "</thead>\n<tbody>\n";
    for cells in rows {
        out += &row("td", cells.iter().map(String::as_str));
    }
    out + "</tbody>\n</table>\n</div>\n"
}

fn row<'a>(tag: &str, cells: impl Iterator<Item = &'a str>) -> String {
    let mut out = String::from("<tr>");
    for cell in cells {
        let _ = write!(out, "<{tag}>{cell}</{tag}>");
    }
    out + "</tr>\n"
}
