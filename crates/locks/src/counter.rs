//! Which line took how many locks?

use std::cell::Cell;
use std::panic::Location;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Taken;

/// More than there are lines that take a lock. Lines that find no slot are not counted.
const SLOTS: usize = 1024;

struct Slot {
    place: OnceLock<&'static Location<'static>>,
    times: AtomicU64,
}

static TABLE: [Slot; SLOTS] = [const { Slot { place: OnceLock::new(), times: AtomicU64::new(0) } }; SLOTS];

thread_local! {
    static IS_EXEMPT: Cell<bool> = const { Cell::new(false) };
}

/// Locks that this thread takes from now on are not counted.
pub fn exempt_this_thread() {
    IS_EXEMPT.set(true);
}

/// How often each line took a lock, in no order.
pub fn counts() -> Vec<Taken> {
    let taken = |slot: &Slot| slot.place.get().map(|place| Taken { place, times: slot.times.load(Ordering::Relaxed) });
    TABLE.iter().filter_map(taken).collect()
}

/// Counts one lock for the line `place`.
pub(crate) fn count(place: &'static Location<'static>) {
    if IS_EXEMPT.try_with(Cell::get).unwrap_or(true) {
        return;
    }
    // In most builds a line has one location. If it has two, both are counted, each in its own slot.
    let first = place.line() as usize * 31 + place.file().len();
    for at in 0..SLOTS {
        let slot = &TABLE[(first + at) % SLOTS];
        if std::ptr::eq(*slot.place.get_or_init(|| place), place) {
            slot.times.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
}
