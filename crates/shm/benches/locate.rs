//! What does it cost to find the bytes of a request in a registered region, with few regions and with many?
//!
//! Run with `cargo bench -p nerite-shm`. Promise T11 says that the cost is the same with 10,000 regions as with one.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use nerite_shm::{Options, OwnedRegion, Registry};

const REGIONS: [usize; 3] = [1, 100, 10_000];
const OBJECT_BYTES: usize = 4096;

fn locate(criterion: &mut Criterion) {
    let key = format!("/nerite-bench-{}", std::process::id());
    let _object = OwnedRegion::create(&key, OBJECT_BYTES).expect("/dev/shm has 4 KiB left");
    let mut group = criterion.benchmark_group("locate");
    for count in REGIONS {
        let registry = Registry::new(Options::default());
        for number in 0..count {
            let name = format!("region_{number}");
            registry.register_system(&name, &key, 0, OBJECT_BYTES as u64).expect("10,000 regions are allowed");
        }
        let name = format!("region_{}", count / 2);
        group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
            bencher.iter(|| registry.locate(black_box(&name), 128, 64).expect("it is registered").into_buffer());
        });
    }
    group.finish();
}

criterion_group!(benches, locate);
criterion_main!(benches);
