//! What does the console show, in perf_analyzer's layout?
//!
//! Lines and their order are those of perf_analyzer 2.46, so a program that reads its report reads this one. Only the block
//! `Cost:` is new. It stands below everything that perf_analyzer writes about a level.

mod cost;
mod server;

use std::fmt::Write as _;
use std::time::Duration;

use super::number::general;
use crate::options::{Distribution, Load, Options, Protocol, Window};
use crate::results::{Client, Gpu, Level, Point};

/// From this share of late requests on, in percent, the report warns.
const LATE_PERCENT: f64 = 1.0;
const GPUS_MAX: usize = 16;

/// The settings, which are written before the first measurement.
pub(crate) fn header(options: &Options, is_sequence: bool, is_decoupled: bool) -> String {
    let mut out = String::from("*** Measurement Settings ***\n");
    out += &format!("  Batch size: {}\n  Service Kind: TRITON\n", options.batch);
    out += &windows(options);
    match &options.load {
        Load::Concurrency(range) if range.start != range.end => {
            let end =
                (!range.is_endless()).then(|| format!("  Concurrency limit: {} concurrent requests\n", range.end));
            out += &limits(options, end);
        }
        Load::Rate(range) if range.start.total_cmp(&range.end).is_ne() => {
            let end = format!("  Request Rate limit: {} requests per seconds\n", general(range.end));
            out += &limits(options, (!range.is_endless()).then_some(end));
        }
        _ => {}
    }
    if matches!(options.load, Load::Rate(_)) {
        let name = match options.distribution {
            Distribution::Constant => "uniform",
            Distribution::Poisson => "poisson",
        };
        out += &format!("  Using {name} distribution on request generation\n");
    }
    if options.is_binary_search {
        out += "  Using Binary Search algorithm\n";
    }
    let is_async = options.is_streaming || options.is_async.unwrap_or(is_sequence);
    out += &format!("  Using {} calls for inference\n", if is_async { "asynchronous" } else { "synchronous" });
    if is_decoupled {
        out += "  Detected decoupled model, using the first response for measuring latency\n";
    }
    out + "\n"
}

/// Which windows there are, and what has to agree.
fn windows(options: &Options) -> String {
    let latency = options.percentile.map_or("average".to_owned(), |percentile| format!("p{percentile}"));
    let stable =
        |mode: &str| format!("  Using \"{mode}\" mode for stabilization\n  Stabilizing using {latency} latency\n");
    match options.window() {
        Window::Fixed(count) => format!("  Sending a total of {count} requests\n"),
        Window::Time(interval) => {
            format!("{}  Measurement window: {} msec\n", stable("time_windows"), interval.as_millis())
        }
        Window::Count(count) => {
            format!("{}  Minimum number of samples in each window: {count}\n", stable("count_windows"))
        }
    }
}

fn limits(options: &Options, end: Option<String>) -> String {
    let latency = options.latency_max.map_or(0, |latency| latency.as_millis());
    format!("  Latency limit: {latency} msec\n{}", end.unwrap_or_default())
}

/// What begins now. perf_analyzer writes nothing where the times of requests come from a file.
pub(crate) fn begin(level: Level) -> String {
    match level {
        Level::Concurrency(clients) => format!("Request concurrency: {clients}\n"),
        Level::Rate(rate) => format!("Request Rate: {} inference requests per seconds\n", general(rate)),
        Level::Intervals(_) => String::new(),
    }
}

/// A window, for `-v`.
pub(crate) fn pass(number: usize, client: &Client, percentile: Option<u8>) -> String {
    let latency = client.stabilized_us(percentile) as u64;
    let latency = match percentile {
        Some(percentile) => format!("p{percentile} latency: {latency} usec"),
        None => format!("Avg latency: {latency} usec (std {} usec). ", client.deviation_us as u64),
    };
    format!("  Pass [{number}] throughput: {} infer/sec. {latency}\n", general(client.throughput))
}

/// Why a level has no measurement, for the standard error: its windows differed to the last.
pub(crate) fn unstable(options: &Options, level: Level) -> String {
    let Level::Concurrency(clients) = level else { return "Failed to obtain stable measurement.\n".to_owned() };
    let cure = if options.is_count_mode { "--measurement-request-count" } else { "--measurement-interval" };
    let windows = options.trials_max;
    format!(
        "Failed to obtain stable measurement within {windows} measurement windows for concurrency {clients}. Please try to \
         increase the {cure}.\n"
    )
}

/// Why no higher level follows, for the standard error.
pub(crate) fn too_slow(limit: Duration) -> String {
    format!("Measured latency went over the set limit of {} msec. \n", limit.as_millis())
}

/// The measurement of a level.
pub(crate) fn level(options: &Options, point: &Point) -> String {
    let mut out = client(options, point);
    if let Some(server) = &point.server {
        out += "  Server: \n";
        out += &server::block(server, 1, server.is_cached());
    }
    if let Some(gpus) = &point.gpus {
        out += &graphics(gpus);
    }
    out + &cost::block(&point.cost) + "\n"
}

/// The client's side.
fn client(options: &Options, point: &Point) -> String {
    let client = &point.client;
    let mut out = format!("  Client: \n    Request count: {}\n", client.requests);
    out += &late(client);
    if let Some(sequences) = client.sequences {
        let rate = general(sequences as f64 / client.seconds);
        out += &format!("    Sequence count: {sequences} ({rate} seq/sec)\n");
    }
    out += &format!("    Throughput: {} infer/sec\n", general(client.throughput));
    if let Some(responses) = client.response_throughput {
        out += &format!("    Response Throughput: {} infer/sec\n", general(responses));
    }
    if options.verbosity > 0 {
        out += &format!("    Avg client overhead: {:.2}%\n", busy_percent(point));
    }
    if options.percentile.is_none() {
        let (mean, deviation) = (client.mean_us as u64, client.deviation_us as u64);
        out += &format!("    Avg latency: {mean} usec (standard deviation {deviation} usec)\n");
    }
    for (percentile, latency) in client.percentiles_us(options.percentile) {
        let _ = writeln!(out, "    p{percentile} latency: {} usec", latency as u64);
    }
    // With a decoupled model perf_analyzer does not say where the time went, but leaves the line.
    let is_decoupled = client.response_throughput.is_some();
    out + "    " + &if is_decoupled { String::new() } else { transfer(options, client) } + "\n"
}

/// A warning if too many requests were late.
fn late(client: &Client) -> String {
    let percent = client.late as f64 / client.requests.max(1) as f64 * 100.0;
    if percent <= LATE_PERCENT {
        return String::new();
    }
    let rate = client.requests as f64 / client.seconds;
    format!(
        "    Avg send request rate: {rate:.2} infer/sec\n    [WARNING] Perf Analyzer was not able to keep up with the desired \
         request rate. {percent:.2}% of the requests were delayed. \n"
    )
}

/// The share of the time in which the load generator ran.
fn busy_percent(point: &Point) -> f64 {
    point.cost.client_cpu_us * point.client.requests as f64 / (point.client.seconds * 1e6) * 100.0
}

/// How long it took to send, to wait and to receive.
fn transfer(options: &Options, client: &Client) -> String {
    let (total, send, receive) = (client.transfer_us() as u64, client.send_us as u64, client.receive_us as u64);
    let wait = total.saturating_sub(send + receive);
    let (sent, received, both) = match options.protocol {
        Protocol::Grpc => ("marshal", "unmarshal", "(un)marshal request/response"),
        Protocol::Http | Protocol::Session => ("send", "receive", "send/recv"),
    };
    let parts = if options.verbosity > 0 {
        format!("{sent} {send} usec + response wait {wait} usec + {received} {receive} usec")
    } else {
        format!("{both} {} usec + response wait {wait} usec", send + receive)
    };
    format!("Avg {} time: {total} usec ({parts})", options.protocol.name())
}

/// The metrics of GPUs.
fn graphics(gpus: &[Gpu]) -> String {
    let mut out = String::from("  Server Prometheus Metrics: \n");
    if gpus.len() > GPUS_MAX {
        return out
            + "Too many GPUs on system to print out individual Prometheus metrics, use the CSV output feature to see metrics.\n";
    }
    type Figure = fn(&Gpu) -> f64;
    let figures: [(&str, Figure, &str); 4] = [
        ("Avg GPU Utilization", |gpu| gpu.utilization * 100.0, "%"),
        ("Avg GPU Power Usage", |gpu| gpu.power_watts, " watts"),
        ("Max GPU Memory Usage", |gpu| gpu.used_bytes, " bytes"),
        ("Total GPU Memory", |gpu| gpu.total_bytes, " bytes"),
    ];
    for (name, figure, unit) in figures {
        let _ = writeln!(out, "    {name}:");
        for gpu in gpus {
            let _ = writeln!(out, "      {} : {}{unit}", gpu.uuid, general(figure(gpu)));
        }
    }
    out
}

/// A line for each level, at the end.
pub(crate) fn summary(percentile: Option<u8>, points: &[Point]) -> String {
    let latency = percentile.map_or("Average".to_owned(), |percentile| format!("p{percentile}"));
    let mut out = format!("Inferences/Second vs. Client {latency} Batch Latency\n");
    for point in points {
        let level = match point.level {
            Level::Concurrency(clients) => format!("Concurrency: {clients}"),
            Level::Rate(rate) | Level::Intervals(rate) => format!("Request Rate: {}", general(rate)),
        };
        let (throughput, latency) = (general(point.client.throughput), point.client.stabilized_us(percentile) as u64);
        let _ = writeln!(out, "{level}, throughput: {throughput} infer/sec, latency {latency} usec");
    }
    out
}

#[cfg(test)]
mod tests;
