//! Is the report perf_analyzer's, line by line?
//!
//! The expected texts are what perf_analyzer 2.46 wrote, with other numbers.

use std::time::Duration;

use super::*;
use crate::options::Range;
use crate::results::{Cache, Cost, Server};
use crate::samples;

#[track_caller]
fn check_header(options: Options, is_sequence: bool, is_decoupled: bool, expect: &str) {
    assert_eq!(header(&options, is_sequence, is_decoupled), format!("*** Measurement Settings ***\n{expect}\n"));
}

const ORDINARY: &str = "  Batch size: 1\n  Service Kind: TRITON\n  Using \"time_windows\" mode for stabilization\n  \
                        Stabilizing using average latency\n  Measurement window: 5000 msec\n";

#[test]
fn the_settings_are_those_of_the_options() {
    let synchronous = "  Using synchronous calls for inference\n";
    let asynchronous = "  Using asynchronous calls for inference\n";
    check_header(Options::default(), false, false, &format!("{ORDINARY}{synchronous}"));
    check_header(Options::default(), true, false, &format!("{ORDINARY}{asynchronous}"));
    check_header(
        Options { is_async: Some(false), ..Options::default() },
        true,
        false,
        &format!("{ORDINARY}{synchronous}"),
    );
    check_header(
        Options { is_streaming: true, ..Options::default() },
        false,
        true,
        &format!(
            "{ORDINARY}{asynchronous}  Detected decoupled model, using the first response for measuring latency\n"
        ),
    );
    check_header(
        Options { is_count_mode: true, count_min: 20, percentile: Some(95), batch: 4, ..Options::default() },
        false,
        false,
        "  Batch size: 4\n  Service Kind: TRITON\n  Using \"count_windows\" mode for stabilization\n  Stabilizing using p95 latency\n  \
         Minimum number of samples in each window: 20\n  Using synchronous calls for inference\n",
    );
    check_header(
        Options { request_count: 30, ..Options::default() },
        false,
        false,
        "  Batch size: 1\n  Service Kind: TRITON\n  Sending a total of 30 requests\n  Using synchronous calls for inference\n",
    );
}

#[test]
fn limits_stand_where_there_is_a_range() {
    let synchronous = "  Using synchronous calls for inference\n";
    let clients = Load::Concurrency(Range { start: 1, end: 4, step: 1 });
    check_header(
        Options {
            load: clients,
            is_binary_search: true,
            latency_max: Some(Duration::from_millis(100)),
            ..Options::default()
        },
        false,
        false,
        &format!(
            "{ORDINARY}  Latency limit: 100 msec\n  Concurrency limit: 4 concurrent requests\n  Using Binary Search algorithm\n\
             {synchronous}"
        ),
    );
    let endless = Load::Concurrency(Range { start: 1, end: 0, step: 1 });
    check_header(
        Options { load: endless, ..Options::default() },
        false,
        false,
        &format!("{ORDINARY}  Latency limit: 0 msec\n{synchronous}"),
    );
    let uniform = "  Using uniform distribution on request generation\n";
    check_header(
        Options { load: Load::Rate(Range { start: 100.0, end: 200.0, step: 100.0 }), ..Options::default() },
        false,
        false,
        &format!(
            "{ORDINARY}  Latency limit: 0 msec\n  Request Rate limit: 200 requests per seconds\n{uniform}{synchronous}"
        ),
    );
    let poisson =
        Options { load: Load::Rate(Range::one(50.5)), distribution: Distribution::Poisson, ..Options::default() };
    check_header(
        poisson,
        false,
        false,
        &format!("{ORDINARY}  Using poisson distribution on request generation\n{synchronous}"),
    );
}

#[test]
fn each_level_and_window_has_a_line() {
    assert_eq!(begin(Level::Concurrency(4)), "Request concurrency: 4\n");
    assert_eq!(begin(Level::Rate(50.5)), "Request Rate: 50.5 inference requests per seconds\n");
    assert_eq!(begin(Level::Rate(1e6)), "Request Rate: 1e+06 inference requests per seconds\n");
    assert_eq!(begin(Level::Intervals(400.0)), "");
    let client = point().client;
    assert_eq!(
        pass(2, &client, None),
        "  Pass [2] throughput: 2058.58 infer/sec. Avg latency: 483 usec (std 135 usec). \n"
    );
    assert_eq!(pass(3, &client, Some(50)), "  Pass [3] throughput: 2058.58 infer/sec. p50 latency: 478 usec\n");
}

#[test]
fn a_level_may_fail() {
    let options = Options { trials_max: 3, ..Options::default() };
    assert_eq!(
        unstable(&options, Level::Concurrency(4)),
        "Failed to obtain stable measurement within 3 measurement windows for concurrency 4. Please try to increase the \
         --measurement-interval.\n"
    );
    assert_eq!(
        unstable(&Options { is_count_mode: true, ..options.clone() }, Level::Concurrency(1)),
        "Failed to obtain stable measurement within 3 measurement windows for concurrency 1. Please try to increase the \
         --measurement-request-count.\n"
    );
    assert_eq!(unstable(&options, Level::Rate(50.0)), "Failed to obtain stable measurement.\n");
    assert_eq!(too_slow(Duration::from_millis(100)), "Measured latency went over the set limit of 100 msec. \n");
}

/// A level with round numbers.
fn point() -> Point {
    let mut point = samples::point(1, 470.0);
    let client = &mut point.client;
    (client.requests, client.seconds, client.throughput) = (1493, 0.725, 2058.583);
    (client.mean_us, client.deviation_us) = (483.9, 135.2);
    (client.send_us, client.wait_us, client.receive_us) = (37.6, 441.0, 1.5);
    point.server = Some(Server {
        successes: 1494,
        inferences: 2988,
        executions: 1494,
        request_us: 138.9,
        queue_us: 50.5,
        input_us: 37.7,
        infer_us: 29.7,
        output_us: 11.7,
        ..Server::default()
    });
    point
}

const CLIENT: &str = "  Client: \n    Request count: 1493\n    Throughput: 2058.58 infer/sec\n    Avg latency: 483 usec (standard \
                      deviation 135 usec)\n    p50 latency: 478 usec\n    p90 latency: 562 usec\n    p95 latency: 1090 usec\n    \
                      p99 latency: 1616 usec\n    Avg HTTP time: 480 usec (send/recv 38 usec + response wait 442 usec)\n";
const SERVER: &str = "  Server: \n    Inference count: 2988\n    Execution count: 1494\n    Successful request count: 1494\n    \
                      Avg request latency: 138 usec (overhead 9 usec + queue 50 usec + compute input 37 usec + compute infer 29 \
                      usec + compute output 11 usec)\n\n";
const COST: &str = "  Cost: \n    Client CPU: 12.3 usec/request, 1.00 wake-ups/request\n    Server CPU: 45.7 usec/request, 2.50 \
                    wake-ups/request\n    Server copies: 128 bytes/request\n    Cores asleep: 25.0% of the time\n    Peak memory: \
                    client 9.0 MiB, server 80.0 MiB\n\n";

#[track_caller]
fn check_level(options: Options, point: Point, expect: &str) {
    assert_eq!(level(&options, &point), expect);
}

#[test]
fn a_level_has_the_client_the_server_and_the_cost() {
    check_level(Options::default(), point(), &format!("{CLIENT}{SERVER}{COST}"));
    check_level(Options::default(), Point { server: None, ..point() }, &format!("{CLIENT}{COST}"));
}

#[test]
fn the_client_is_described_as_the_options_want_it() {
    let tail = format!("{SERVER}{COST}");
    let expect = CLIENT
        .replace("    Avg latency: 483 usec (standard deviation 135 usec)\n", "")
        .replace("    p90", "    p80 latency: 541 usec\n    p90");
    check_level(Options { percentile: Some(80), ..Options::default() }, point(), &format!("{expect}{tail}"));
    let verbose = Options { verbosity: 1, ..Options::default() };
    let expect = CLIENT.replace("    Avg latency", "    Avg client overhead: 2.54%\n    Avg latency").replace(
        "(send/recv 38 usec + response wait 442 usec)",
        "(send 37 usec + response wait 442 usec + receive 1 usec)",
    );
    check_level(verbose.clone(), point(), &format!("{expect}{tail}"));
    let grpc =
        expect.replace("HTTP", "gRPC").replace("(send 37", "(marshal 37").replace("+ receive 1", "+ unmarshal 1");
    check_level(Options { protocol: Protocol::Grpc, ..verbose }, point(), &format!("{grpc}{tail}"));
    let grpc = CLIENT.replace("HTTP", "gRPC").replace("(send/recv", "((un)marshal request/response");
    check_level(Options { protocol: Protocol::Grpc, ..Options::default() }, point(), &format!("{grpc}{tail}"));
    let session = CLIENT.replace("HTTP", "session");
    check_level(Options { protocol: Protocol::Session, ..Options::default() }, point(), &format!("{session}{tail}"));
}

#[test]
fn sequences_and_several_responses_have_lines_of_their_own() {
    let tail = format!("{SERVER}{COST}");
    let mut sequences = point();
    sequences.client.sequences = Some(306);
    let expect = CLIENT.replace("    Throughput", "    Sequence count: 306 (422.069 seq/sec)\n    Throughput");
    check_level(Options::default(), sequences, &format!("{expect}{tail}"));
    let mut decoupled = point();
    decoupled.client.response_throughput = Some(6175.749);
    let expect = CLIENT
        .replace("    Avg latency", "    Response Throughput: 6175.75 infer/sec\n    Avg latency")
        .replace("Avg HTTP time: 480 usec (send/recv 38 usec + response wait 442 usec)", "");
    check_level(Options::default(), decoupled, &format!("{expect}{tail}"));
}

#[test]
fn late_requests_are_told_from_one_percent_on() {
    let mut late = point();
    late.client.late = 14;
    check_level(Options::default(), late.clone(), &format!("{CLIENT}{SERVER}{COST}"));
    late.client.late = 996;
    let expect = CLIENT.replace(
        "    Throughput",
        "    Avg send request rate: 2059.31 infer/sec\n    [WARNING] Perf Analyzer was not able to keep up with the desired request \
         rate. 66.71% of the requests were delayed. \n    Throughput",
    );
    check_level(Options::default(), late, &format!("{expect}{SERVER}{COST}"));
}

#[track_caller]
fn check_server(server: Server, expect: &str) {
    check_level(
        Options::default(),
        Point { server: Some(server), ..point() },
        &format!("{CLIENT}  Server: \n{expect}{COST}"),
    );
}

fn step() -> Server {
    Server {
        model: "cached".to_owned(),
        version: "1".to_owned(),
        successes: 1216,
        inferences: 1,
        executions: 1,
        request_us: 33.9,
        queue_us: 5.5,
        infer_us: 31.5,
        cache: Some(Cache { hits: 1215, misses: 1, hit_us: 24.0, miss_us: 69.0 }),
        ..Server::default()
    }
}

fn ensemble(step: Server) -> Server {
    Server {
        successes: 1216,
        inferences: 1216,
        executions: 1216,
        request_us: 235.5,
        composing: vec![step],
        ..Server::default()
    }
}

const STEP: &str = "  Composing models: \n  cached, version: 1\n      Inference count: 1\n      Execution count: 1\n";

#[test]
fn a_cache_tells_its_hits_and_misses() {
    check_server(
        step(),
        "    Inference count: 1\n    Execution count: 1\n    Cache hit count: 1215\n    Cache miss count: 1\n    Successful request \
         count: 1216\n    Avg request latency: 33 usec (overhead 4 usec + queue 5 usec + cache hit/miss 24 usec)\n      Average Cache \
         Hit Latency: 24 usec\n      Average Cache Miss Latency: 100 usec (cache lookup/insertion 69 usec + compute input 0 usec + \
         compute infer 31 usec + compute output 0 usec)\n\n",
    );
}

#[test]
fn an_ensemble_lists_its_steps() {
    let counts = "    Inference count: 1216\n    Execution count: 1216\n";
    check_server(
        ensemble(Server { cache: None, ..step() }),
        &format!(
            "{counts}    Successful request count: 1216\n    Avg request latency: 235 usec (overhead 199 usec + queue 5 usec + \
             compute 31 usec)\n\n{STEP}      Successful request count: 1216\n      Avg request latency: 33 usec (overhead 0 usec + \
             queue 5 usec + compute input 0 usec + compute infer 31 usec + compute output 0 usec)\n\n"
        ),
    );
    check_server(
        ensemble(Server { successes: 0, cache: None, ..step() }),
        &format!(
            "{counts}    Successful request count: 1216\n    Avg request latency: 235 usec (overhead 199 usec + queue 5 usec + \
             compute 31 usec)\n\n  Composing models: \n  cached, version: 1\n      Request count: 0\n"
        ),
    );
}

#[test]
fn an_ensemble_adds_the_caches_of_its_steps() {
    let step_lines = format!(
        "{STEP}      Cache hit count: 1215\n      Cache miss count: 1\n      Successful request count: 1216\n      Avg request \
         latency: 33 usec (overhead 4 usec + queue 5 usec + cache hit/miss 24 usec)\n          Average Cache Hit Latency: 24 usec\n\
         \x20         Average Cache Miss Latency: 100 usec (cache lookup/insertion 69 usec + compute input 0 usec + compute infer 31 \
         usec + compute output 0 usec)\n\n"
    );
    let counts = "    Inference count: 1216\n    Execution count: 1216\n";
    check_server(
        ensemble(step()),
        &format!(
            "{counts}    Cache hit count: 0\n    Cache miss count: 0\n    Successful request count: 1216\n    Avg request latency: \
             235 usec (overhead 206 usec + queue 5 usec + cache hit/miss 24 usec)\n      Average Cache Hit Latency: 24 usec\n      \
             Average Cache Miss Latency: 100 usec \n\n{step_lines}"
        ),
    );
    let cache = Some(Cache { hits: 2146, misses: 1, hit_us: 26.0, miss_us: 54.0 });
    check_server(
        Server { cache, ..ensemble(step()) },
        &format!(
            "{counts}    Cache hit count: 2146\n    Cache miss count: 1\n    Successful request count: 1216\n    Avg request latency: \
             235 usec\n      Average Cache Hit Latency: 50 usec\n      Average Cache Miss Latency: 154 usec \n\n{step_lines}"
        ),
    );
}

#[test]
fn graphics_cards_have_a_line_for_each_figure() {
    let gpu = Gpu {
        uuid: "GPU-1".to_owned(),
        utilization: 0.345,
        power_watts: 85.5,
        used_bytes: 1_048_576.0,
        total_bytes: 1.5e10,
    };
    let names = "  Server Prometheus Metrics: \n    Avg GPU Utilization:\n      GPU-1 : 34.5%\n    Avg GPU Power Usage:\n      GPU-1 : 85.5 \
                 watts\n    Max GPU Memory Usage:\n      GPU-1 : 1.04858e+06 bytes\n    Total GPU Memory:\n      GPU-1 : 1.5e+10 bytes\n";
    let with = |gpus| Point { gpus: Some(gpus), ..point() };
    check_level(Options::default(), with(vec![gpu.clone()]), &format!("{CLIENT}{SERVER}{names}{COST}"));
    check_level(
        Options::default(),
        with(vec![gpu; 17]),
        &format!(
            "{CLIENT}{SERVER}  Server Prometheus Metrics: \nToo many GPUs on system to print out individual Prometheus metrics, use the \
             CSV output feature to see metrics.\n{COST}"
        ),
    );
}

#[test]
fn what_nobody_sees_has_no_cost() {
    let cost = Cost { client_cpu_us: 1.0, client_wake_ups: 0.5, idle: 0.5, client_bytes: 1 << 20, ..Cost::default() };
    let head = "  Cost: \n    Client CPU: 1.0 usec/request, 0.50 wake-ups/request\n";
    let tail = "    Cores asleep: 50.0% of the time\n    Peak memory: client 1.0 MiB\n";
    check_level(
        Options::default(),
        Point { cost, ..point() },
        &format!("{CLIENT}{SERVER}{head}    Server CPU: unknown, because its process is not visible here\n{tail}\n"),
    );
    let cost = Cost { server_cpu_us: Some(2.0), is_one_core: Some(true), ..cost };
    check_level(
        Options::default(),
        Point { cost, ..point() },
        &format!(
            "{CLIENT}{SERVER}{head}    Server CPU: 2.0 usec/request\n{tail}    Client and server ran on the same core.\n\n"
        ),
    );
}

#[test]
fn the_summary_has_a_line_for_each_level() {
    let levels = [Level::Concurrency(1), Level::Rate(50.5), Level::Intervals(400.0)];
    let points = levels.map(|level| Point { level, ..point() });
    let figures = "throughput: 2058.58 infer/sec, latency 483 usec";
    assert_eq!(
        summary(None, &points),
        format!(
            "Inferences/Second vs. Client Average Batch Latency\nConcurrency: 1, {figures}\nRequest Rate: 50.5, {figures}\nRequest Rate: \
             400, {figures}\n"
        )
    );
    assert_eq!(
        summary(Some(95), &points[..1]),
        "Inferences/Second vs. Client p95 Batch Latency\nConcurrency: 1, throughput: 2058.58 infer/sec, latency 1090 usec\n"
    );
}
