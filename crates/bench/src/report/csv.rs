//! What does a file for a spreadsheet hold, in perf_analyzer's columns?

use super::number::general;
use crate::options::Options;
use crate::results::{Cache, Client, Gpu, Level, Point, Server};

/// One row for each level, by throughput. Empty without levels.
pub(crate) fn table(options: &Options, points: &[Point]) -> String {
    let Some(first) = points.first() else { return String::new() };
    let shape = Shape::of(options, first);
    let mut rows = vec![shape.header(first)];
    rows.extend(by_throughput(points).into_iter().map(|point| shape.row(point)));
    rows.join("\n") + "\n"
}

/// A table for each model of an ensemble's steps: what precedes the name of the file, and the text.
pub(crate) fn steps(points: &[Point]) -> Vec<(String, String)> {
    let Some(first) = points.first().and_then(|point| point.server.as_ref()) else { return Vec::new() };
    let is_cached = first.is_cached();
    let mut tables = Vec::new();
    for step in &first.composing {
        let mut rows = vec![format!("{},{}Client Recv", load(&points[0]), server_header(is_cached))];
        for point in by_throughput(points) {
            let Some(server) = &point.server else { continue };
            let found = server.composing.iter().find(|one| one.model == step.model && one.version == step.version);
            rows.extend(found.map(|found| step_row(point, server, found, is_cached)));
        }
        tables.push((format!("{}_v{}.", step.model, step.version), rows.join("\n") + "\n"));
    }
    tables
}

fn by_throughput(points: &[Point]) -> Vec<&Point> {
    let mut sorted: Vec<&Point> = points.iter().collect();
    sorted.sort_by(|one, other| one.client.throughput.total_cmp(&other.client.throughput));
    sorted
}

/// Which columns there are.
struct Shape {
    percentile: Option<u8>,
    is_verbose: bool,
    is_decoupled: bool,
    has_server: bool,
    is_cached: bool,
    has_gpus: bool,
}

impl Shape {
    fn of(options: &Options, first: &Point) -> Shape {
        Shape {
            percentile: options.percentile,
            is_verbose: options.files.is_csv_verbose,
            is_decoupled: first.client.response_throughput.is_some(),
            has_server: first.server.is_some(),
            is_cached: first.server.as_ref().is_some_and(Server::is_cached),
            has_gpus: first.gpus.is_some(),
        }
    }

    fn header(&self, first: &Point) -> String {
        let mut out = load(first) + ",Inferences/Second,";
        if self.is_decoupled {
            out += "Response Throughput,";
        }
        out += "Client Send,";
        if self.has_server {
            out += &stage_header(self.is_cached);
        }
        out += "Client Recv";
        for (percentile, _) in first.client.percentiles_us(self.percentile) {
            out += &format!(",p{percentile} latency");
        }
        if self.is_verbose {
            out += if self.percentile.is_none() { ",Avg latency" } else { "" };
            out += ",request/response,response wait";
            out += if self.has_gpus {
                ",Avg GPU Utilization,Avg GPU Power Usage,Max GPU Memory Usage,Total GPU Memory"
            } else {
                ""
            };
        }
        out
    }

    fn row(&self, point: &Point) -> String {
        let client = &point.client;
        let mut cells = vec![level(point), general(client.throughput)];
        if self.is_decoupled {
            cells.push(general(client.response_throughput.unwrap_or_default()));
        }
        cells.push(whole(client.send_us));
        if self.has_server {
            let server = point.server.clone().unwrap_or_default();
            let network = client.mean_us - client.send_us - client.receive_us - accounted_us(&server);
            cells.extend(stages(network, &server, self.is_cached));
        }
        cells.push(whole(client.receive_us));
        cells.extend(client.percentiles_us(self.percentile).into_iter().map(|(_, latency)| whole(latency)));
        if self.is_verbose {
            cells.extend(self.percentile.is_none().then(|| whole(client.mean_us)));
            cells.extend(exchange(client));
            if self.has_gpus {
                cells.extend(graphics(point.gpus.as_deref().unwrap_or_default()));
            }
        }
        cells.join(",")
    }
}

fn load(point: &Point) -> String {
    match point.level {
        Level::Concurrency(_) => "Concurrency".to_owned(),
        Level::Rate(_) | Level::Intervals(_) => "Request Rate".to_owned(),
    }
}

fn level(point: &Point) -> String {
    general(point.level.value())
}

fn stage_header(is_cached: bool) -> String {
    let cache = if is_cached { "Server Cache Hit,Server Cache Miss," } else { "" };
    format!(
        "Network+Server Send/Recv,Server Queue,Server Compute Input,Server Compute Infer,Server Compute Output,{cache}"
    )
}

fn server_header(is_cached: bool) -> String {
    format!("Inferences/Second,Client Send,{}", stage_header(is_cached))
}

/// What the server says that it spent on a request.
fn accounted_us(server: &Server) -> f64 {
    let cache = server.cache.unwrap_or_default();
    server.queue_us + server.compute_us() + cache.hit_us + cache.miss_us
}

fn stages(network_us: f64, server: &Server, is_cached: bool) -> Vec<String> {
    let mut times = vec![network_us, server.queue_us, server.input_us, server.infer_us, server.output_us];
    if is_cached {
        let Cache { hit_us, miss_us, .. } = server.cache.unwrap_or_default();
        times.extend([hit_us, miss_us]);
    }
    times.into_iter().map(whole).collect()
}

/// The time for sending and receiving, and the time between.
fn exchange(client: &Client) -> [String; 2] {
    let both = client.send_us as u64 + client.receive_us as u64;
    [both.to_string(), (client.transfer_us() as u64).saturating_sub(both).to_string()]
}

fn graphics(gpus: &[Gpu]) -> [String; 4] {
    let figures: [fn(&Gpu) -> f64; 4] =
        [|gpu| gpu.utilization, |gpu| gpu.power_watts, |gpu| gpu.used_bytes, |gpu| gpu.total_bytes];
    figures.map(|figure| {
        let cells: Vec<String> = gpus.iter().map(|gpu| format!("{}:{};", gpu.uuid, general(figure(gpu)))).collect();
        cells.concat()
    })
}

/// The throughput of a step is its share of the ensemble's requests. What its time has no name for is its network.
fn step_row(point: &Point, ensemble: &Server, step: &Server, is_cached: bool) -> String {
    let share = step.successes as f64 / ensemble.successes.max(1) as f64;
    let mut cells = vec![level(point), general(share * point.client.throughput), "0".to_owned()];
    cells.extend(stages(step.request_us - accounted_us(step), step, is_cached));
    cells.push("0".to_owned());
    cells.join(",")
}

/// Whole µs, and 0 where two measurements disagree.
fn whole(us: f64) -> String {
    (us as u64).to_string()
}

#[cfg(test)]
mod tests;
