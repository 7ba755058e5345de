//! Are the columns perf_analyzer's?
//!
//! The expected headers are those of files that perf_analyzer 2.46 wrote.

use super::*;
use crate::options::Files;
use crate::samples;

fn point(clients: usize, throughput: f64) -> Point {
    let mut point = samples::point(clients, 470.0);
    let client = &mut point.client;
    (client.throughput, client.mean_us) = (throughput, 483.9);
    (client.send_us, client.wait_us, client.receive_us) = (37.6, 441.0, 1.5);
    let server = point.server.as_mut().expect("samples have a server");
    (server.queue_us, server.input_us, server.infer_us, server.output_us) = (50.5, 37.7, 29.7, 11.7);
    point
}

fn verbose() -> Options {
    Options { files: Files { is_csv_verbose: true, ..Files::default() }, ..Options::default() }
}

#[track_caller]
fn check(options: &Options, points: &[Point], expect: &[&str]) {
    assert_eq!(table(options, points).lines().collect::<Vec<_>>(), expect);
}

const STAGES: &str =
    "Network+Server Send/Recv,Server Queue,Server Compute Input,Server Compute Infer,Server Compute Output";

#[test]
fn rows_are_sorted_by_throughput() {
    let header = format!(
        "Concurrency,Inferences/Second,Client Send,{STAGES},Client Recv,p50 latency,p90 latency,p95 latency,p99 latency"
    );
    check(
        &Options::default(),
        &[point(1, 2058.583), point(2, 2664.02), point(3, 2646.71)],
        &[
            &header,
            "1,2058.58,37,315,50,37,29,11,1,478,562,1090,1616",
            "3,2646.71,37,315,50,37,29,11,1,478,562,1090,1616",
            "2,2664.02,37,315,50,37,29,11,1,478,562,1090,1616",
        ],
    );
    check(&Options::default(), &[], &[]);
}

#[test]
fn verbose_columns_follow() {
    let header = format!(
        "Request Rate,Inferences/Second,Client Send,{STAGES},Client Recv,p50 latency,p90 latency,p95 latency,p99 latency"
    );
    let rate = Point { level: Level::Rate(1e6), ..point(1, 99.5) };
    check(
        &verbose(),
        std::slice::from_ref(&rate),
        &[
            &format!("{header},Avg latency,request/response,response wait"),
            "1e+06,99.5,37,315,50,37,29,11,1,478,562,1090,1616,483,38,442",
        ],
    );
    check(
        &Options { percentile: Some(95), ..verbose() },
        std::slice::from_ref(&rate),
        &[
            &format!("{header},request/response,response wait"),
            "1e+06,99.5,37,315,50,37,29,11,1,478,562,1090,1616,38,442",
        ],
    );
    let gpu = |uuid: &str| Gpu {
        uuid: uuid.to_owned(),
        utilization: 0.5,
        power_watts: 85.0,
        used_bytes: 1024.0,
        total_bytes: 2048.0,
    };
    check(
        &verbose(),
        &[Point { gpus: Some(vec![gpu("a"), gpu("b")]), ..rate }],
        &[
            &format!(
                "{header},Avg latency,request/response,response wait,Avg GPU Utilization,Avg GPU Power Usage,Max GPU Memory Usage,Total \
                 GPU Memory"
            ),
            "1e+06,99.5,37,315,50,37,29,11,1,478,562,1090,1616,483,38,442,a:0.5;b:0.5;,a:85;b:85;,a:1024;b:1024;,a:2048;b:2048;",
        ],
    );
}

#[test]
fn columns_depend_on_the_model() {
    let mut decoupled = point(1, 645.56);
    decoupled.client.response_throughput = Some(1936.68);
    check(
        &Options { percentile: Some(80), ..Options::default() },
        &[Point { server: None, ..decoupled }],
        &[
            "Concurrency,Inferences/Second,Response Throughput,Client Send,Client Recv,p50 latency,p80 latency,p90 latency,p95 latency,p99 \
             latency",
            "1,645.56,1936.68,37,1,478,541,562,1090,1616",
        ],
    );
    let mut cached = point(1, 2942.91);
    let server = cached.server.as_mut().expect("samples have a server");
    server.cache = Some(Cache { hits: 2, misses: 1, hit_us: 26.5, miss_us: 400.0 });
    check(
        &Options::default(),
        &[cached],
        &[
            &format!(
                "Concurrency,Inferences/Second,Client Send,{STAGES},Server Cache Hit,Server Cache Miss,Client Recv,p50 latency,p90 \
                 latency,p95 latency,p99 latency"
            ),
            "1,2942.91,37,0,50,37,29,11,26,400,1,478,562,1090,1616",
        ],
    );
}

#[test]
fn a_model_of_an_ensemble_has_a_table_of_its_own() {
    let ensemble = |clients, throughput| {
        let mut ensemble = point(clients, throughput);
        let server = ensemble.server.as_mut().expect("samples have a server");
        let step = Server {
            model: "identity_fp32".to_owned(),
            version: "1".to_owned(),
            successes: 2 * server.successes,
            request_us: 40.9,
            queue_us: 23.5,
            infer_us: 9.5,
            ..Server::default()
        };
        server.composing.push(step);
        ensemble
    };
    assert_eq!(steps(&[point(1, 1.0)]), []);
    assert_eq!(
        steps(&[ensemble(2, 2000.0), ensemble(1, 1446.15)]),
        [(
            "identity_fp32_v1.".to_owned(),
            format!(
                "Concurrency,Inferences/Second,Client Send,{STAGES},Client Recv\n1,2892.3,0,7,23,0,9,0,0\n2,4000,0,7,23,0,9,0,0\n"
            )
        )]
    );
}
