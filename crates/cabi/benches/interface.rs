//! What does a run of a compiled backend cost?
//!
//! `cargo bench -p nerite-cabi`. The backend is `tests/backends/sample.c`. The time is that of making one request of a row, running it through the C
//! interface, and delivering its answer, with one input and output and with two of each.
#![allow(clippy::unwrap_used)]

#[path = "../tests/support/requests.rs"]
mod requests;
#[path = "../tests/support/sample.rs"]
mod sample;

use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use nerite_backend::conformance::context;
use nerite_backend::{Meter, ModelVersion, NoMeter, Outbox, Runtime};
use nerite_request::Reply;
use requests::{batch, instance, request};
use sample::{backend, config, floats};

fn run(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let model = backend(folder.path()).load(&context(folder.path(), config("max_batch_size: 8"))).unwrap();
    let mut instance = instance(&*model, 0, None).unwrap();
    let (version, meter): (_, Arc<dyn Meter>) = (ModelVersion::unmetered("m"), Arc::new(NoMeter));
    let mut group = criterion.benchmark_group("run");
    for count in [1, 2] {
        let names = &[("IN", "OUT"), ("IN1", "OUT1")][..count];
        group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
            bencher.iter(|| {
                let inputs = names.iter().map(|(input, _)| floats(input, &[1.0, 2.0]));
                let outputs = names.iter().map(|(_, output)| *output);
                let batch = batch(request(inputs, outputs, Reply::new(drop)), &version, &meter);
                drop(Outbox::around(|| instance.run(batch)));
            });
        });
    }
    group.finish();
}

criterion_group!(benches, run);
criterion_main!(benches);
