//! How long may a run wait for clients that do not read?
//!
//! The run holds its instance, for which requests of other clients wait.

use std::cell::Cell;
use std::time::Duration;

use nerite_request::limits::CLIENT_WAITS_MAX;

thread_local! {
    /// How long the run on this thread may still wait. `None` outside of a run.
    static LEFT: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// Does the work of a run, all of whose waits on this thread together are bounded.
pub fn bounding_waits<T>(run: impl FnOnce() -> T) -> T {
    let _outer = Outer(LEFT.replace(Some(CLIENT_WAITS_MAX)));
    run()
}

/// How long the run on this thread may still wait. `None` outside of a run: there only the backend's own threads wait.
pub fn left() -> Option<Duration> {
    LEFT.get()
}

/// Subtracts this time from what the run on this thread may still wait.
pub fn spend(waited: Duration) {
    LEFT.set(LEFT.get().map(|left| left.saturating_sub(waited)));
}

/// The time that the run around this one had left. It is restored on drop, also after a panic.
struct Outer(Option<Duration>);

impl Drop for Outer {
    fn drop(&mut self) {
        LEFT.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_waits_of_a_run_count_together() {
        assert_eq!(left(), None);
        bounding_waits(|| {
            spend(CLIENT_WAITS_MAX / 2);
            bounding_waits(|| assert_eq!(left(), Some(CLIENT_WAITS_MAX)));
            assert_eq!(left(), Some(CLIENT_WAITS_MAX / 2));
            spend(CLIENT_WAITS_MAX);
            assert_eq!(left(), Some(Duration::ZERO));
        });
        spend(CLIENT_WAITS_MAX);
        assert_eq!(left(), None);
    }
}
