//! What does the dynamic batcher cost a request?
//!
//! `cargo run --release -p nerite-schedule --example batcher_cost` measures the processor time of scheduler and driver for one request, while many
//! requests wait, each with a deadline, a level, a key of shapes and the spans of two inputs.
#![expect(clippy::print_stdout, reason = "it measures and says so")]

use std::time::Instant;

use nerite_schedule::{
    Arrival, BatchPolicy, Batcher, Deadline, Driver, InstanceId, PriorityLevels, Span, Ticket, TimeoutAction,
};

const REQUESTS: u64 = 1_000_000;

fn main() {
    for waiting in [1, 16, 1_000, 16_000] {
        println!("{waiting} waiting: {} ns a request", measure(waiting));
    }
}

fn measure(waiting: u64) -> u64 {
    let levels = PriorityLevels { count: 2, default_level: 1, ..PriorityLevels::default() };
    let policy = BatchPolicy {
        rows_max: 8,
        preferred: vec![8],
        levels,
        by_shapes: true,
        by_spans: true,
        ..BatchPolicy::default()
    };
    let mut driver = Driver::new(Box::new(Batcher::new(policy))).with_join_rule(|_: &[&u64], _: &u64| true);
    let began = Instant::now();
    let (mut number, mut ran) = (0, 0);
    while ran < REQUESTS {
        while (driver.waiting() as u64) < waiting {
            number += 1;
            driver.arrive(number, |ticket| arrival(ticket, number), number);
        }
        driver.grant(InstanceId(0), number);
        while let Some(run) = driver.next_run() {
            ran += run.jobs().count() as u64;
            driver.done(run.instance, number);
        }
    }
    u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX) / ran
}

fn arrival(ticket: Ticket, number: u64) -> Arrival {
    let deadline = Some(Deadline { at_us: number + 1_000_000_000, action: TimeoutAction::Reject });
    let span = |allocation| Span { allocation, offset: 64 * (number ^ 1), len: 64 };
    let spans = [span(1), span(2)].into_iter().collect();
    Arrival { deadline, priority: 1 + number % 2, shapes: 7, spans, ..Arrival::new(ticket, 1) }
}
