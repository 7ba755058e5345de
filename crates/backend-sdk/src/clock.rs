//! When did the phases of a run begin and end?

use std::cell::Cell;

/// The times of a run, in nanoseconds of the system's monotonic clock, as the server's statistics need them.
#[derive(Debug)]
pub struct Clock {
    start_ns: u64,
    input_end_ns: Cell<u64>,
    infer_end_ns: Cell<u64>,
}

impl Clock {
    /// The run begins now.
    pub fn start() -> Clock {
        Clock { start_ns: now_ns(), input_end_ns: Cell::new(0), infer_end_ns: Cell::new(0) }
    }

    /// The inputs are read.
    pub fn mark_input_end(&self) {
        self.input_end_ns.set(now_ns());
    }

    /// The model has run.
    pub fn mark_infer_end(&self) {
        self.infer_end_ns.set(now_ns());
    }

    /// Start, end of inputs, end of the inference, and now. A time that was not noted is the one before it.
    pub fn times(&self) -> [u64; 4] {
        let input_end = self.input_end_ns.get().max(self.start_ns);
        let infer_end = self.infer_end_ns.get().max(input_end);
        [self.start_ns, input_end, infer_end, now_ns().max(infer_end)]
    }
}

fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place for the result is ours. The clock is there on all Linux systems; a failure leaves the zeros.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_order_whatever_was_noted() {
        let nothing = Clock::start();
        let [start, input_end, infer_end, end] = nothing.times();
        assert!(start > 0 && start == input_end && input_end == infer_end && infer_end <= end);
        let noted = Clock::start();
        noted.mark_infer_end();
        assert!(noted.times().is_sorted());
        noted.mark_input_end();
        assert!(noted.times().is_sorted());
    }
}
