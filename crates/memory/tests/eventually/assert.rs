//! Does a value become the one that a test expects?

use std::time::{Duration, Instant};

/// The longest wait for the work of another thread.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Waits until `look` returns `expected`.
#[track_caller]
pub fn assert_eventually<T: PartialEq + std::fmt::Debug>(look: impl Fn() -> T, expected: T) {
    let begun = Instant::now();
    while look() != expected && begun.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    assert_eq!(look(), expected);
}
