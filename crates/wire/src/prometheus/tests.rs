//! Does the text have what Prometheus and the dashboards of Triton look for?

use nerite_request::report::{BatchReport, Duration};

use super::*;

fn model(name: &str) -> ModelMetrics {
    let statistics = StatisticsReport { name: name.into(), version: 1, ..StatisticsReport::default() };
    ModelMetrics { statistics, ..ModelMetrics::default() }
}

#[track_caller]
fn check(report: &MetricsReport, line: &str, there: bool) {
    let text = write_metrics(report);
    assert_eq!(text.lines().any(|found| found == line), there, "{line}\n{text}");
}

fn report() -> MetricsReport {
    let mut busy = model("a");
    busy.statistics.success.add(1_999_000);
    busy.statistics.failures = [1, 2, 3, 4];
    busy.statistics.load_ns = 1_500_000_000;
    (busy.is_ready, busy.restarts, busy.has_failed_reload) = (true, 4, true);
    let batch = |batch_size, count| BatchReport {
        batch_size,
        compute_infer: Duration { count, ns: 7 },
        ..BatchReport::default()
    };
    busy.statistics.batches = vec![batch(1, 3), batch(4, 2)];
    MetricsReport {
        models: vec![busy, model("b")],
        counter_latencies: true,
        host: Some(HostMetrics { cpu_utilization: 0.25, ..HostMetrics::default() }),
        copied_bytes: vec![("unaligned", 64)],
        shm_regions: vec![("system", 2)],
        sessions: 3,
        session_socket: Some(SessionSocketMetrics { is_up: true, reopened: 2 }),
        budget: nerite_budget::Counts { used: 7, leaving: 3, max: 9, shed: vec![("peer", 2)], refused: 0 },
        lease_bytes: vec![("lent", 4096), ("idle", 0)],
        connections: ConnectionMetrics { open: 7, refused: vec![("peer", 5)], ..ConnectionMetrics::default() },
        ..MetricsReport::default()
    }
}

#[test]
fn every_model_has_its_series_from_the_start() {
    check(&report(), "nv_inference_request_success{model=\"a\",version=\"1\"} 1", true);
    check(&report(), "nv_inference_request_success{model=\"b\",version=\"1\"} 0", true);
    check(&report(), "nv_inference_request_failure{model=\"a\",reason=\"CANCELED\",version=\"1\"} 2", true);
    check(&report(), "nv_inference_request_failure{model=\"b\",reason=\"OTHER\",version=\"1\"} 0", true);
    check(&report(), "nv_inference_request_duration_us{model=\"a\",version=\"1\"} 1999", true);
    check(&report(), "nv_inference_pending_request_count{model=\"b\",version=\"1\"} 0", true);
    check(&report(), "nv_model_load_duration_secs{model=\"a\",version=\"1\"} 1.5", true);
    check(&report(), "# TYPE nv_inference_exec_count counter", true);
    check(&report(), "nerite_model_ready{model=\"a\",version=\"1\"} 1", true);
    check(&report(), "nerite_model_ready{model=\"b\",version=\"1\"} 0", true);
    check(&report(), "nerite_model_restarts_total{model=\"a\",version=\"1\"} 4", true);
    check(&report(), "nerite_model_restarts_total{model=\"b\",version=\"1\"} 0", true);
    check(&report(), "nerite_model_reload_failed{model=\"a\",version=\"1\"} 1", true);
    check(&report(), "nerite_model_reload_failed{model=\"b\",version=\"1\"} 0", true);
    check(&report(), "nerite_model_run_rows_total{model=\"a\",version=\"1\"} 11", true);
    check(&report(), "nerite_model_run_rows_total{model=\"b\",version=\"1\"} 0", true);
}

#[test]
fn families_of_the_host_and_of_nerite_have_no_model() {
    check(&report(), "nv_cpu_utilization 0.25", true);
    check(&report(), "nv_pinned_memory_pool_total_bytes 0", true);
    check(&report(), "nerite_copied_bytes_total{reason=\"unaligned\"} 64", true);
    check(&report(), "nerite_shm_regions{kind=\"system\"} 2", true);
    check(&report(), "nerite_shm_mapped_bytes 0", true);
    check(&report(), "nerite_sessions 3", true);
    let traced = MetricsReport { traces: vec![("dropped", 2)], trace_bytes: 9, ..report() };
    check(&traced, "nerite_traces_total{outcome=\"dropped\"} 2", true);
    check(&traced, "nerite_trace_bytes 9", true);
    let unlogged = MetricsReport { log_lines_lost: vec![("write_failed", 4)], ..report() };
    check(&unlogged, "nerite_log_lines_lost_total{reason=\"write_failed\"} 4", true);
    check(&report(), "nerite_demand_models", false);
    let demand = Some(DemandMetrics { models: 2, bytes: 64, loads: 3, evictions: 1, waiting: 5 });
    let on_demand = MetricsReport { demand, ..report() };
    check(&on_demand, "nerite_demand_models_bytes 64", true);
    check(&on_demand, "nerite_demand_evictions_total 1", true);
    check(&report(), "nerite_session_socket_up 1", true);
    check(&report(), "nerite_session_socket_reopened_total 2", true);
    check(&report(), "nerite_lease_bytes{state=\"lent\"} 4096", true);
    check(&report(), "nerite_memory_budget_bytes{state=\"used\"} 7", true);
    check(&report(), "nerite_memory_budget_bytes{state=\"leaving\"} 3", true);
    check(&report(), "nerite_shed_connections_total{reason=\"peer\"} 2", true);
    check(&report(), "nerite_token_requests_total{outcome=\"passed\",token=\"ci\"} 3", false);
    let ci = nerite_access::Counts { name: "ci".into(), passed: 3, bytes_out: 8, ..nerite_access::Counts::default() };
    let counters = nerite_access::Counters { tokens: vec![ci], unknown: 4, ..nerite_access::Counters::default() };
    let by_token = MetricsReport { access: Some(counters), ..report() };
    check(&by_token, "nerite_token_requests_total{outcome=\"passed\",token=\"ci\"} 3", true);
    check(&by_token, "nerite_token_bytes_total{direction=\"out\",token=\"ci\"} 8", true);
    check(&by_token, "nerite_token_refused_total{reason=\"unknown\"} 4", true);
    check(&by_token, "nerite_token_file_current 0", true);
    check(&report(), "nerite_connections 7", true);
    check(&report(), "nerite_connections_refused_total{reason=\"peer\"} 5", true);
}

#[test]
fn loads_are_counted_by_outcome_and_each_model_has_both() {
    let of = |name: &str, namespace: &str| ModelLoads {
        name: name.into(),
        namespace: namespace.into(),
        successes: 2,
        failures: 0,
    };
    let report = MetricsReport { loads: vec![of("a", ""), of("b", "/r")], ..MetricsReport::default() };
    check(&report, "nerite_model_loads_total{model=\"a\",outcome=\"success\"} 2", true);
    check(&report, "nerite_model_loads_total{model=\"a\",outcome=\"failure\"} 0", true);
    check(&report, "nerite_model_loads_total{model=\"b\",namespace=\"/r\",outcome=\"success\"} 2", true);
    check(&MetricsReport::default(), "# TYPE nerite_model_loads_total counter", false);
}

#[test]
fn the_server_is_shown_also_without_models() {
    let server = ServerMetrics {
        is_ready: true,
        version: "1.2".into(),
        started_s: Some(1.5e9),
        certificates: vec![("http", 1_900_000_000)],
        refused: vec![("memory", 3)],
    };
    let report = MetricsReport { server, ..MetricsReport::default() };
    check(&report, "nerite_ready 1", true);
    check(&report, "nerite_build_info{version=\"1.2\"} 1", true);
    check(&report, "process_start_time_seconds 1500000000", true);
    check(&report, "nerite_certificate_not_after_seconds{port=\"http\"} 1900000000", true);
    check(&report, "nerite_requests_refused_total{reason=\"memory\"} 3", true);
    check(&MetricsReport::default(), "nerite_ready 0", true);
    check(&MetricsReport::default(), "# TYPE nerite_certificate_not_after_seconds gauge", false);
    check(&MetricsReport::default(), "# TYPE process_start_time_seconds gauge", false);
}

#[test]
fn a_histogram_has_cumulative_buckets_a_sum_and_a_count() {
    let wall = Histogram { buckets: vec![(100_000, 7), (10_000_000_000, 9)], count: 10, sum_ns: 1_500_000_000 };
    let front_busy = BusyMetrics { wall, stalling_peers: 2, staged_requests: 3, ..BusyMetrics::default() };
    let report = MetricsReport { front_busy: Some(front_busy), ..report() };
    check(&report, "# TYPE nerite_front_thread_busy_seconds histogram", true);
    check(&report, "nerite_front_thread_busy_seconds_bucket{le=\"0.0001\"} 7", true);
    check(&report, "nerite_front_thread_busy_seconds_bucket{le=\"10\"} 9", true);
    check(&report, "nerite_front_thread_busy_seconds_bucket{le=\"+Inf\"} 10", true);
    check(&report, "nerite_front_thread_busy_seconds_sum 1.5", true);
    check(&report, "nerite_front_thread_busy_seconds_count 10", true);
    check(&report, "nerite_front_thread_busy_cpu_seconds_count 0", true);
    check(&report, "nerite_stalling_peers 2", true);
    check(&report, "nerite_staged_requests_total 3", true);
}

#[test]
fn disabled_metrics_are_omitted() {
    let off = MetricsReport { counter_latencies: false, host: None, session_socket: None, ..report() };
    check(&off, "# TYPE nerite_session_socket_up gauge", false);
    check(&off, "# TYPE nv_inference_queue_duration_us counter", false);
    check(&off, "# TYPE nv_cpu_utilization gauge", false);
    check(&off, "# TYPE nv_inference_count counter", true);
    check(&MetricsReport::default(), "# TYPE nv_inference_count counter", false);
}

#[test]
fn failures_outlive_their_model() {
    let gone = MetricsReport { gone: vec![model("old")], ..report() };
    check(&gone, "nv_inference_request_failure{model=\"old\",reason=\"OTHER\",version=\"1\"} 0", true);
    check(&gone, "nv_inference_count{model=\"old\",version=\"1\"} 0", false);
}

#[test]
fn a_namespace_is_a_label_where_there_are_namespaces() {
    let mut spaced = model("m");
    spaced.statistics.namespace = "/models/a".to_owned();
    let report = MetricsReport { models: vec![spaced], ..MetricsReport::default() };
    let of = "model=\"m\",namespace=\"/models/a\"";
    check(&report, &format!("nv_inference_count{{{of},version=\"1\"}} 0"), true);
    check(&report, &format!("nv_inference_request_failure{{{of},reason=\"OTHER\",version=\"1\"}} 0"), true);
}

#[test]
fn the_gpu_of_a_model_is_a_label() {
    let tags = vec![("b".into(), "1".into())];
    let mut placed = ModelMetrics { tags, ..model("m") };
    placed.statistics.gpu_uuid = "GPU-1".to_owned();
    let report = MetricsReport { models: vec![placed], ..MetricsReport::default() };
    check(&report, "nv_inference_count{_b=\"1\",gpu_uuid=\"GPU-1\",model=\"m\",version=\"1\"} 0", true);
}

#[test]
fn a_model_on_several_devices_is_counted_for_each() {
    let mut placed = model("m");
    let part = |uuid: &str, inference_count| StatisticsReport {
        gpu_uuid: uuid.into(),
        inference_count,
        failures: [inference_count, 0, 0, 0],
        ..placed.statistics.clone()
    };
    let by_device = vec![part("", 1), part("GPU-1", 2), part("GPU-2", 3)];
    placed.statistics = StatisticsReport { inference_count: 6, by_device, ..placed.statistics };
    let report = MetricsReport { models: vec![placed], ..report() };
    check(&report, "nv_inference_count{model=\"m\",version=\"1\"} 1", true);
    check(&report, "nv_inference_count{gpu_uuid=\"GPU-2\",model=\"m\",version=\"1\"} 3", true);
    let of = "gpu_uuid=\"GPU-1\",model=\"m\"";
    check(&report, &format!("nv_inference_request_failure{{{of},reason=\"REJECTED\",version=\"1\"}} 2"), true);
    check(&report, &format!("nv_inference_queue_duration_us{{{of},version=\"1\"}} 0"), true);
    check(&report, "nv_inference_pending_request_count{model=\"m\",version=\"1\"} 0", true);
}

#[test]
fn tags_come_first_and_values_are_escaped() {
    let tags = vec![("b".into(), "x\"\\".into()), ("a".into(), "1".into())];
    let tagged = MetricsReport { models: vec![ModelMetrics { tags, ..model("m") }], ..MetricsReport::default() };
    check(&tagged, "nv_inference_count{_a=\"1\",_b=\"x\\\"\\\\\",model=\"m\",version=\"1\"} 0", true);
}
