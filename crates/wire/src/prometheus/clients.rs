//! How are the work and the memory that clients make the server use shown as metrics?

use super::page::{Page, Value};
use super::{BusyMetrics, ConnectionMetrics};

pub(super) fn write_busy(page: &mut Page, BusyMetrics { wall, cpu, stalling_peers, staged_requests }: &BusyMetrics) {
    let help = "Time by the clock that a thread which serves connections did not come back to them";
    page.histogram("nerite_front_thread_busy_seconds", help, wall);
    let help =
        "Processor time that a thread which serves connections used before it came back to them, to within about 2 ms";
    page.histogram("nerite_front_thread_busy_cpu_seconds", help, cpu);
    let help = "Users and addresses whose requests made threads wait for shared memory lately";
    page.family("nerite_stalling_peers", "gauge", help, [(String::new(), Value::Whole(*stalling_peers))]);
    let help = "Requests of the users and addresses of nerite_stalling_peers that ran on copies of their shared memory";
    page.family("nerite_staged_requests_total", "counter", help, [(String::new(), Value::Whole(*staged_requests))]);
}

pub(super) fn write_budget(page: &mut Page, budget: &nerite_budget::Counts) {
    page.family(
        "nerite_memory_budget_bytes",
        "gauge",
        "Bytes that clients make the server hold (leaving: of connections that are being ended), and that they may, by state",
        [("used", budget.used), ("leaving", budget.leaving), ("max", budget.max)]
            .map(|(state, bytes)| (format!("{{state=\"{state}\"}}"), Value::Whole(bytes))),
    );
    page.family(
        "nerite_shed_connections_total",
        "counter",
        "Connections ended because of what they held, by the budget that was exceeded",
        budget.shed.iter().map(|(reason, count)| (format!("{{reason=\"{reason}\"}}"), Value::Whole(*count))),
    );
}

pub(super) fn write_connections(page: &mut Page, connections: &ConnectionMetrics) {
    let by_reason = |counts: &[(&'static str, u64)]| {
        let sample = |(reason, count): &(&str, u64)| (format!("{{reason=\"{reason}\"}}"), Value::Whole(*count));
        counts.iter().map(sample).collect::<Vec<_>>()
    };
    let whole = |value| [(String::new(), Value::Whole(value))];
    page.family("nerite_connections", "gauge", "Open connections of HTTP, gRPC and metrics", whole(connections.open));
    page.family(
        "nerite_connection_peers",
        "gauge",
        "Users and addresses that have connections",
        whole(connections.peers),
    );
    page.family(
        "nerite_connections_refused_total",
        "counter",
        "Connections refused because there are too many, of all or of one peer",
        by_reason(&connections.refused),
    );
    page.family(
        "nerite_connections_ended_total",
        "counter",
        "Connections and calls ended because their client kept the server waiting, or idle ones to make room",
        by_reason(&connections.ended),
    );
}
