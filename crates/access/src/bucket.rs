//! How much may be taken now, if the amount per second is limited?
//!
//! A bucket that is filled at a steady rate is kept as one number: the time at which it will be full again (the generic cell rate
//! algorithm). Nothing has to be filled as time passes. All functions are pure; time is passed in, in ns.

use crate::limits::{DEBT_MAX, UNANNOUNCED_BYTES};

/// How fast a bucket is filled, and how much it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Units in a second; not 0.
    pub per_second: u64,
    /// Units that a full bucket holds; not 0.
    pub burst: u64,
}

const SECOND_NS: u128 = 1_000_000_000;

impl Rate {
    /// Takes `cost` units out of a bucket that will be full at `full_at_ns`. Ok: the new time at which it will be full. Err: ns until there are that
    /// many units, or until it is full if it never holds that many.
    pub fn take(self, full_at_ns: u64, cost: u64, now_ns: u64) -> Result<u64, u64> {
        let after = full_at_ns.max(now_ns).saturating_add(self.time_of(cost));
        let over = after.saturating_sub(now_ns).saturating_sub(self.time_of(self.burst));
        if over == 0 { Ok(after) } else { Err(over.min(full_at_ns.saturating_sub(now_ns)).max(1)) }
    }

    /// Takes the units of a message that is about to come. A full bucket lets one message pass that is larger than it ever holds, and the missing units are owed.
    /// `None`: the length is not announced. Then a part of what is left is taken. Otherwise as [`Rate::take`].
    pub fn take_announced(self, full_at_ns: u64, cost: Option<u64>, now_ns: u64) -> Result<u64, u64> {
        let cost = cost.unwrap_or_else(|| self.left(full_at_ns, now_ns).clamp(1, UNANNOUNCED_BYTES));
        let taken = self.take(full_at_ns, cost, now_ns);
        taken
            .or_else(|wait_ns| if full_at_ns <= now_ns { Ok(self.owe(full_at_ns, cost, now_ns)) } else { Err(wait_ns) })
    }

    /// Takes `cost` units even if there are too few. The missing units must be refilled before others can be taken, but no more than come in [`DEBT_MAX`].
    pub fn owe(self, full_at_ns: u64, cost: u64, now_ns: u64) -> u64 {
        self.owe_time(full_at_ns, self.time_of(cost), now_ns)
    }

    /// As [`Rate::owe`], for the units that come in this time.
    pub fn owe_time(self, full_at_ns: u64, cost_ns: u64, now_ns: u64) -> u64 {
        let debt_max_ns = u64::try_from(DEBT_MAX.as_nanos()).unwrap_or(u64::MAX);
        let latest = now_ns.saturating_add(self.time_of(self.burst)).saturating_add(debt_max_ns);
        full_at_ns.max(now_ns).saturating_add(cost_ns).min(latest.max(full_at_ns))
    }

    /// Units in the bucket.
    fn left(self, full_at_ns: u64, now_ns: u64) -> u64 {
        let left_ns = self.time_of(self.burst).saturating_sub(full_at_ns.saturating_sub(now_ns));
        u64::try_from(u128::from(left_ns) * u128::from(self.per_second) / SECOND_NS).unwrap_or(u64::MAX)
    }

    /// ns until there is at least one unit; 0 if there is one.
    pub fn wait(self, full_at_ns: u64, now_ns: u64) -> u64 {
        let missing = full_at_ns.saturating_sub(now_ns).saturating_add(self.time_of(1));
        missing.saturating_sub(self.time_of(self.burst))
    }

    /// The ns in which this many units come.
    pub fn time_of(self, units: u64) -> u64 {
        let ns = u128::from(units) * SECOND_NS / u128::from(self.per_second.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;
    const TEN: Rate = Rate { per_second: 10, burst: 3 };

    /// Takes units at these times, in ms. Returns the result of each: `None` if they were taken, else the ms to wait.
    #[track_caller]
    fn check(rate: Rate, cost: u64, at_ms: &[u64], expect: &[Option<u64>]) {
        let mut full_at_ns = 0;
        let found: Vec<_> = at_ms
            .iter()
            .map(|ms| match rate.take(full_at_ns, cost, 5 * S + ms * MS) {
                Ok(after) => {
                    full_at_ns = after;
                    None
                }
                Err(wait_ns) => Some(wait_ns / MS),
            })
            .collect();
        assert_eq!(found, expect, "{rate:?} at {at_ms:?}");
    }

    #[test]
    fn a_burst_is_taken_at_once_and_then_the_rate_holds() {
        check(TEN, 1, &[0, 0, 0, 0], &[None, None, None, Some(100)]);
        check(TEN, 1, &[0, 0, 0, 60, 100, 100, 200], &[None, None, None, Some(40), None, Some(100), None]);
    }

    #[test]
    fn what_is_not_taken_is_kept_up_to_the_burst() {
        check(TEN, 1, &[0, 0, 0, 10_000, 10_000, 10_000, 10_000], &[None, None, None, None, None, None, Some(100)]);
    }

    #[test]
    fn more_than_the_burst_is_never_taken_and_the_wait_is_bounded() {
        check(TEN, 4, &[0], &[Some(0)]);
        check(Rate { per_second: u64::MAX, burst: 1 }, 1, &[0, 0], &[None, None]);
        assert!(Rate { per_second: 1, burst: 1 }.take(0, u64::MAX, 1).is_err());
        assert_eq!(Rate { per_second: 1, burst: u64::MAX }.owe(u64::MAX, u64::MAX, 1), u64::MAX);
    }

    #[test]
    fn what_is_owed_must_come_before_more_is_taken() {
        let bytes = Rate { per_second: 1000, burst: 1000 };
        assert_eq!(bytes.wait(0, S), 0);
        let owing = bytes.owe(0, 3000, S);
        assert_eq!(bytes.wait(owing, S), 2 * S + MS, "2,000 are missing, and one more must be there");
        assert_eq!(bytes.wait(owing, 3 * S + MS), 0);
        assert_eq!(bytes.wait(bytes.owe(0, 999, S), S), 0);
        assert_eq!(bytes.wait(bytes.owe(0, 1000, S), S), MS);
    }

    #[test]
    fn what_is_announced_must_be_left_unless_the_bucket_is_full() {
        let bytes = Rate { per_second: 1000, burst: 1000 };
        let first = bytes.take_announced(0, Some(600), S).expect("it is full");
        assert_eq!(bytes.take_announced(first, Some(600), S), Err(200 * MS), "400 are left");
        assert!(bytes.take_announced(first, Some(400), S).is_ok());
        let large = bytes.take_announced(0, Some(4000), S).expect("more than it holds, but it is full");
        assert_eq!(bytes.wait(large, S), 3 * S + MS);
        assert_eq!(bytes.take_announced(first, Some(4000), S), Err(600 * MS), "until it is full");
        assert_eq!(bytes.take_announced(first, None, S), Ok(first + 400 * MS), "the rest of it");
        assert!(bytes.take_announced(first + 400 * MS, None, S).is_err());
        let wide = Rate { per_second: 1, burst: u64::MAX };
        assert_eq!(wide.take_announced(0, None, S), Ok(S + UNANNOUNCED_BYTES * S));
    }

    #[test]
    fn what_is_owed_is_bounded() {
        let bytes = Rate { per_second: 1000, burst: 1000 };
        let owing = (0..20).fold(0, |full_at_ns, _| bytes.owe(full_at_ns, 1 << 31, S));
        assert_eq!(bytes.wait(owing, S), 3600 * S + MS);
    }

    #[test]
    fn in_any_second_no_more_is_taken_than_the_burst_and_the_rate() {
        let (mut full_at_ns, mut taken) = (0, 0);
        for at in 0..10_000_u64 {
            if let Ok(after) = TEN.take(full_at_ns, 1, S + at * MS) {
                (full_at_ns, taken) = (after, taken + 1);
            }
        }
        assert_eq!(taken, 3 + 99, "three at once, and one each 100 ms after that");
    }
}
