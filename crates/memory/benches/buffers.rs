//! What does it cost to take memory for a result, to fill it and to read it?
//!
//! `cargo bench -p nerite-memory`. The sizes are those of `cargo xtask peer`: 4 MiB comes from the pool of large blocks.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use nerite_memory::{Buffer, Extent, Reason, Slot};

const SIZES: [usize; 3] = [64, 256 << 10, 4 << 20];

/// What the built-in identity model does: take a slot, copy the input into it, and give it back as a buffer.
fn copy_into_slot(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("copy_into_slot");
    for size in SIZES {
        let input = Buffer::from(vec![7u8; size]);
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
            bencher.iter(|| {
                let mut slot = Slot::heap(size);
                slot.fill_from(0, &input, Reason::Model).expect("the slot has the input's size");
                slot.filled().into_buffer()
            });
        });
    }
    group.finish();
}

/// What it costs to hand a part of a message on without a copy.
fn slice_buffer(criterion: &mut Criterion) {
    let message = Buffer::from(vec![7u8; 4096]);
    criterion.bench_function("slice_buffer", |bencher| {
        bencher
            .iter(|| message.slice(Extent::new(black_box(64), 128, message.len()).expect("64 + 128 is within 4096")));
    });
}

criterion_group!(benches, copy_into_slot, slice_buffer);
criterion_main!(benches);
