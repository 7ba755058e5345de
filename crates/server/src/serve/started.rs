//! When did this process start?

use std::time::{Duration, SystemTime};

use rustix::param::clock_ticks_per_second;
use rustix::time::{ClockId, clock_gettime};

/// In seconds since 1970, by the clock as it is now. `None` if the system does not tell.
#[expect(clippy::disallowed_methods, reason = "Prometheus computes with the date")]
pub fn started_s() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let booted = Duration::try_from(clock_gettime(ClockId::Boottime)).ok()?;
    let age = booted.checked_sub(since_boot(&stat, clock_ticks_per_second())?)?;
    let started = SystemTime::now().checked_sub(age)?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(started.as_secs_f64())
}

/// The time from the start of the machine to that of the process, by /proc/PID/stat. The name of the program is in parentheses, and may have any
/// character.
fn since_boot(stat: &str, ticks_per_second: u64) -> Option<Duration> {
    /// The fields between the name and the start.
    const BETWEEN: usize = 19;
    let (_, after_name) = stat.rsplit_once(')')?;
    let ticks: u64 = after_name.split_ascii_whitespace().nth(BETWEEN)?.parse().ok()?;
    Some(Duration::from_secs_f64(ticks as f64 / ticks_per_second as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(stat: &str, expect: Option<f64>) {
        assert_eq!(since_boot(stat, 100).map(|time| time.as_secs_f64()), expect, "{stat}");
    }

    #[test]
    fn the_start_is_the_22nd_field() {
        let rest = "S 1 77 77 0 -1 4194560 800 0 0 0 5 2 0 0 20 0 9 0 12345 99000000 900 1844";
        check(&format!("77 (nerite) {rest}"), Some(123.45));
        check(&format!("77 (a) b) 1 2 (c) {rest}"), Some(123.45));
        check("77 (nerite) S 1", None);
        check("", None);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "it compares dates")]
    fn this_process_started_in_the_last_hours_and_not_in_the_future() {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs_f64();
        let started = started_s().expect("/proc");
        assert!(started <= now + 1.0 && started > now - 86_400.0, "{started} at {now}");
    }
}
