//! What does the dynamic batcher cost a request?
//!
//! `cargo bench -p nerite-schedule`. The time is that of scheduler and driver for one request, while others wait, each with a deadline, a level, a key
//! of shapes and the spans of two inputs.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use nerite_schedule::{
    Arrival, BatchPolicy, Batcher, Deadline, Driver, InstanceId, PriorityLevels, Span, Ticket, TimeoutAction,
};

const ROWS_MAX: u32 = 8;

/// One batch of eight arrives and runs, while this many requests wait.
fn batch(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("batch");
    group.throughput(Throughput::Elements(u64::from(ROWS_MAX))).measurement_time(Duration::from_secs(2));
    for waiting in [8, 1_000, 16_000] {
        group.bench_function(BenchmarkId::from_parameter(waiting), |bencher| {
            let (mut driver, mut number) = (driver(), 0);
            bencher.iter(|| {
                while driver.waiting() < waiting {
                    number += 1;
                    driver.arrive(number, |ticket| arrival(ticket, number), number);
                }
                driver.grant(InstanceId(0), number);
                let run = driver.next_run().expect("requests wait, and the instance is idle");
                driver.done(run.instance, number);
                run
            });
        });
    }
    group.finish();
}

fn driver() -> Driver<u64> {
    let levels = PriorityLevels { count: 2, default_level: 1, ..PriorityLevels::default() };
    let policy = BatchPolicy {
        rows_max: ROWS_MAX,
        preferred: vec![ROWS_MAX],
        levels,
        by_shapes: true,
        by_spans: true,
        ..BatchPolicy::default()
    };
    Driver::new(Box::new(Batcher::new(policy))).with_join_rule(|_, _| true)
}

fn arrival(ticket: Ticket, number: u64) -> Arrival {
    let deadline = Some(Deadline { at_us: number + 1_000_000_000, action: TimeoutAction::Reject });
    let span = |allocation| Span { allocation, offset: 64 * (number ^ 1), len: 64 };
    let spans = [span(1), span(2)].into_iter().collect();
    Arrival { deadline, priority: 1 + number % 2, shapes: 7, spans, ..Arrival::new(ticket, 1) }
}

criterion_group!(benches, batch);
criterion_main!(benches);
