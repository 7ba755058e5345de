//! On which machine, and when, was something measured?

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::results::Machine;

const DAY_S: u64 = 86_400;

/// This machine, as far as it says.
pub(crate) fn machine() -> Machine {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let processors = read("/proc/cpuinfo");
    let name = processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let averages = read("/proc/loadavg");
    let mut averages = averages.split_whitespace().map(|average| average.parse().unwrap_or_default());
    Machine {
        processor: name.map_or_else(String::new, |(_, name)| name.to_owned()),
        cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
        load: std::array::from_fn(|_| averages.next().unwrap_or_default()),
    }
}

/// Now in UTC, as `2026-11-30T13:00:00Z`.
pub(crate) fn now() -> String {
    date(since_1970().as_secs())
}

/// The time since 1970.
#[expect(clippy::disallowed_methods, reason = "reports say when something was measured")]
pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The date of so many seconds since 1970, by the calendar arithmetic of Howard Hinnant ("chrono-Compatible Low-Level Date Algorithms").
fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / DAY_S + 719_468, seconds % DAY_S);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hours, minutes, seconds) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year}-{month:02}-{of_month:02}T{hours:02}:{minutes:02}:{seconds:02}Z")
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expect) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_796_083_199, "2026-11-30T23:59:59Z"),
        ] {
            assert_eq!(date(seconds), expect);
        }
    }
}
