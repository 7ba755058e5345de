//! What does the console show of the server's statistics?

use std::fmt::Write as _;

use crate::results::Server;

/// The counts and times of a model, and of the models it calls. `depth` is 1, and one more with each step.
pub(super) fn block(server: &Server, depth: usize, is_cached: bool) -> String {
    let indent = "  ".repeat(depth);
    if server.successes == 0 {
        return format!("{indent}  Request count: 0\n");
    }
    let mut out = format!("{indent}  Inference count: {}\n", server.inferences);
    let _ = writeln!(out, "{indent}  Execution count: {}", server.executions);
    if is_cached {
        let cache = server.cache.unwrap_or_default();
        let _ = writeln!(out, "{indent}  Cache hit count: {}", cache.hits);
        let _ = writeln!(out, "{indent}  Cache miss count: {}", cache.misses);
    }
    let _ = writeln!(out, "{indent}  Successful request count: {}", server.successes);
    let _ = write!(out, "{indent}  Avg request latency: {} usec", server.request_us as u64);
    match (server.composing.is_empty(), is_cached) {
        (true, false) => out += &plain(server),
        (true, true) => out += &cached(server, &indent),
        (false, false) => out += &ensemble(server),
        (false, true) => out += &cached_ensemble(server, &indent),
    }
    if !server.composing.is_empty() {
        let _ = writeln!(out, "{indent}Composing models: ");
        for step in &server.composing {
            let _ = writeln!(out, "{indent}{}, version: {}", step.model, step.version);
            out += &block(step, depth + 1, is_cached);
        }
    }
    out
}

/// What is left of a request's time, which is counted in whole µs.
fn overhead(server: &Server, queue_us: u64, compute_us: u64) -> u64 {
    (server.request_us as u64).saturating_sub(queue_us + compute_us)
}

fn plain(server: &Server) -> String {
    let queue = server.queue_us as u64;
    let overhead = overhead(server, queue, server.compute_us() as u64);
    format!(" (overhead {overhead} usec + queue {queue} usec + {})\n\n", stages(server))
}

fn stages(server: &Server) -> String {
    let (input, infer, output) = (server.input_us as u64, server.infer_us as u64, server.output_us as u64);
    format!("compute input {input} usec + compute infer {infer} usec + compute output {output} usec")
}

fn cached(server: &Server, indent: &str) -> String {
    let (queue, compute) = (server.queue_us as u64, server.cached_compute_us() as u64);
    let cache = server.cache.unwrap_or_default();
    let miss = cache.miss_us as u64;
    format!(
        " (overhead {} usec + queue {queue} usec + cache hit/miss {compute} usec)\n{}{} usec (cache lookup/insertion {miss} \
         usec + {})\n\n",
        overhead(server, queue, compute),
        latencies(indent, cache.hit_us as u64),
        miss + server.compute_us() as u64,
        stages(server),
    )
}

/// The lines of the cache, up to the latency of a miss.
fn latencies(indent: &str, hit_us: u64) -> String {
    format!(
        "{indent}{indent}  Average Cache Hit Latency: {hit_us} usec\n{indent}{indent}  Average Cache Miss Latency: "
    )
}

fn ensemble(server: &Server) -> String {
    let sums = Sums::of(server);
    let overhead = overhead(server, sums.queue, sums.compute);
    format!(" (overhead {overhead} usec + queue {} usec + compute {} usec)\n\n", sums.queue, sums.compute)
}

/// Where the ensemble itself is cached, perf_analyzer writes no parts of its time, and adds its lookups to those of its steps.
fn cached_ensemble(server: &Server, indent: &str) -> String {
    let sums = Sums::of(server);
    let own = server.cache.unwrap_or_default();
    let mut parts = String::new();
    if server.cache.is_none() {
        let (overhead, queue, cached) = (overhead(server, sums.queue, sums.cached), sums.queue, sums.cached);
        parts = format!(" (overhead {overhead} usec + queue {queue} usec + cache hit/miss {cached} usec)");
    }
    let (hit, miss) = (own.hit_us as u64 + sums.hit, own.miss_us as u64 + sums.miss + sums.compute);
    format!("{parts}\n{}{miss} usec \n\n", latencies(indent, hit))
}

/// The times of all models without steps, in whole µs each.
#[derive(Default)]
struct Sums {
    queue: u64,
    compute: u64,
    hit: u64,
    miss: u64,
    cached: u64,
}

impl Sums {
    fn of(server: &Server) -> Sums {
        let mut sums = Sums::default();
        for step in &server.composing {
            let more = if step.composing.is_empty() { Sums::leaf(step) } else { Sums::of(step) };
            sums.queue += more.queue;
            sums.compute += more.compute;
            sums.hit += more.hit;
            sums.miss += more.miss;
            sums.cached += more.cached;
        }
        sums
    }

    fn leaf(server: &Server) -> Sums {
        let cache = server.cache.unwrap_or_default();
        Sums {
            queue: server.queue_us as u64,
            compute: server.compute_us() as u64,
            hit: cache.hit_us as u64,
            miss: cache.miss_us as u64,
            cached: server.cached_compute_us() as u64,
        }
    }
}
