//! What does one worker do?

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Shared;
use super::record::Each;
use crate::dataset::Slot;
use crate::lock;

/// Bytes of a worker's stack. There may be many workers.
const STACK_BYTES: usize = 256 << 10;

/// A worker that sleeps longer would keep the end of the load waiting.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Starts one more worker, unless there are as many as there may be.
pub(super) fn start(shared: &Arc<Shared>) {
    let mut workers = lock(&shared.workers);
    let number = workers.len();
    if number >= shared.workers_max || shared.permits.is_closed() {
        return;
    }
    let own = Arc::clone(shared);
    let thread = std::thread::Builder::new().name(format!("bench-{number}")).stack_size(STACK_BYTES);
    match thread.spawn(move || {
        if let Err(reason) = run(&own, number) {
            lock(&own.failure).get_or_insert(reason);
            own.permits.close();
        }
    }) {
        Ok(worker) => workers.push(worker),
        Err(error) => {
            drop(workers);
            lock(&shared.failure).get_or_insert(format!("no thread for another connection: {error}"));
        }
    }
}

fn run(shared: &Arc<Shared>, number: usize) -> Result<(), String> {
    // Otherwise the kernel may end a wait 50 µs late. An older kernel that refuses it is less exact.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut link = shared.linker.connect()?;
    let mut slot = Slot::default();
    while shared.permits.take() {
        let (due, is_late) = wait_until_due(shared);
        if shared.permits.is_closed() {
            return Ok(());
        }
        let (at, sequenced) = match &shared.sequences {
            Some(sequences) => {
                let (at, sequenced) = lock(sequences).next(&mut slot);
                (at, Some(sequenced))
            }
            None if shared.steps == 1 => (0, None),
            None => (shared.step.fetch_add(1, Ordering::Relaxed) % shared.steps, None),
        };
        let times = link.exchange(at, sequenced).map_err(|error| error.to_string())?;
        let mut record = lock(shared.records.of(number));
        record.add(due.unwrap_or(times.start), &times, is_late);
        record.sequences += u64::from(sequenced.is_some_and(|sequenced| sequenced.is_end));
        if shared.keeps_each {
            let sequence = sequenced.map_or(0, |sequenced| sequenced.id);
            let responses = if link.responses().is_empty() { vec![times.end] } else { link.responses().to_vec() };
            record.each.push(Each { start: times.start, sequence, responses });
        }
        drop(record);
        shared.done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Takes the next request, and waits until it is due. Returns when its latency begins if that is not when it is sent, and whether it is late: a request that
/// no worker was free for waited since it was due.
#[expect(clippy::disallowed_methods, reason = "a worker has nothing else to do")]
fn wait_until_due(shared: &Arc<Shared>) -> (Option<Instant>, bool) {
    let Some((due, is_late)) = shared.pace.next() else { return (None, false) };
    shared.idle.fetch_add(1, Ordering::Relaxed);
    while !shared.permits.is_closed() {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(SLEEP_MAX));
    }
    if shared.idle.fetch_sub(1, Ordering::Relaxed) == 1 {
        // While this request is under way, the next one needs another worker.
        start(shared);
    }
    (is_late.then_some(due), is_late)
}
