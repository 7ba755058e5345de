//! How many threads do the front ends have?

use super::Settings;

/// Threads of the front ends if the operator does not set them; Triton's default.
const FRONT_THREADS_MAX: usize = 8;

/// The cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Settings {
    /// Threads of the front ends on a host with this many cores.
    pub fn front_threads(&self, cores: usize) -> usize {
        front_threads(self.threads, cores)
    }
}

/// By default half of the cores. On a small machine a second thread costs more in wake-ups than it gains (on two cores, a
/// request of 64 bytes takes 18 µs with one thread and 24 to 70 µs with two). On a large machine the models need the other half.
fn front_threads(requested: Option<usize>, cores: usize) -> usize {
    requested.unwrap_or(FRONT_THREADS_MAX.min(cores / 2)).clamp(1, cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(requested: Option<usize>, cores: usize, threads: usize) {
        assert_eq!(front_threads(requested, cores), threads, "{requested:?} of {cores} cores");
    }

    #[test]
    fn front_ends_take_half_the_cores_unless_told_otherwise() {
        check(None, 1, 1);
        check(None, 2, 1);
        check(None, 8, 4);
        check(None, 64, 8);
        check(Some(2), 2, 2);
        check(Some(0), 2, 1);
        check(Some(99), 4, 4);
    }
}
