//! What do huge pages gain for large leases on this system?
//!
//! ```text
//! cargo run --release -p nerite-shm --example huge_leases
//! echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled    # as root; then again
//! ```
//!
//! Leases that fill huge pages request them (`madvise`). By default Linux gives none to shared memory.
#![expect(clippy::print_stdout, reason = "an example prints what it found")]

use std::time::{Duration, Instant};

use nerite_memory::{Buffer, Extent, Reason};
use nerite_shm::{LeaseLimits, Pools};

const ROUNDS: u32 = 9;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
    println!("shmem_enabled: {}", enabled.trim());
    for mib in [2usize, 4, 16, 64] {
        let bytes = mib << 20;
        let (mut first, mut again, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let pools = Pools::new(LeaseLimits { bytes_max: 1 << 30, session_bytes_max: 1 << 30 });
            let account = pools.open();
            let lease = account.borrow(bytes as u64)?.lease;
            let source = Buffer::from(vec![1u8; bytes]);
            let copy = || -> Result<Duration, Box<dyn std::error::Error>> {
                let start = Instant::now();
                lease.slot(Extent::new(0, bytes, lease.byte_size())?).fill_from(0, &source, Reason::Model)?;
                Ok(start.elapsed())
            };
            first.push(copy()?);
            again.push(copy()?);
            again.push(copy()?);
            let start = Instant::now();
            drop((lease, account));
            gone.push(start.elapsed());
        }
        let [first, again, gone] = [first, again, gone].map(median);
        println!("{mib:3} MiB: first copy {first:?}, later ones {again:?}, end {gone:?}");
    }
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
