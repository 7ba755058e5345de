//! How much of what was booked may be returned?
//!
//! A bucket fills while a booking is open. If a booking that was open for long came back as a whole, the time in which the bucket filled would count twice,
//! and many such bookings would be more than the burst. So what open bookings may return is never more than what is missing in the bucket:
//!
//! ```text
//!   now                                              full_at
//!    ├─ of the oldest booking ─┬─ of the next one ─┬──┼──────► time      left = burst - (full_at - now)
//!    └───────────────── missing in the bucket ────────┘
//! ```
//! As time passes less is missing, and the oldest booking loses first. All functions are pure; time is passed in, in ns.

use std::collections::BTreeMap;

use crate::bucket::Rate;

/// Units that were taken out of a bucket before they are used. The default one has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Booking {
    /// Which one of its bucket it is; 0 if nothing was booked.
    pub number: u64,
    /// The ns in which the units come.
    pub time_ns: u64,
}

/// A bucket with open bookings. The default one is full.
#[derive(Clone, Debug, Default)]
pub(crate) struct BookedBucket {
    full_at_ns: u64,
    /// The time that each open booking may return, by its number, so the oldest first. A booking that may return nothing is not there.
    returnable: BTreeMap<u64, u64>,
    /// Their sum.
    returnable_ns: u64,
    last_number: u64,
}

impl BookedBucket {
    /// Whether the bucket is full. Its open bookings may return nothing then, so it is equal to a new bucket.
    pub fn is_full(&self, now_ns: u64) -> bool {
        self.full_at_ns <= now_ns
    }

    /// ns until there is at least one unit besides those of this booking; 0 if there is one.
    pub fn wait(&self, rate: Rate, booking: Booking, now_ns: u64) -> u64 {
        rate.wait(self.full_at_ns.saturating_sub(booking.time_ns), now_ns)
    }

    /// Books the units of a message, as [`Rate::take_announced`] takes them. Err: ns until there are that many.
    pub fn book(&mut self, rate: Rate, announced: Option<u64>, now_ns: u64) -> Result<Booking, u64> {
        let after_ns = rate.take_announced(self.full_at_ns, announced, now_ns)?;
        self.last_number += 1;
        let time_ns = self.take(self.last_number, after_ns, now_ns);
        Ok(Booking { number: self.last_number, time_ns })
    }

    /// Books `units` in place of fewer. Those that are missing are owed.
    pub fn extend(&mut self, rate: Rate, booking: Booking, units: u64, now_ns: u64) -> Booking {
        let time_ns = rate.time_of(units);
        let Some(missing_ns) = time_ns.checked_sub(booking.time_ns) else { return booking };
        self.take(booking.number, rate.owe_time(self.full_at_ns, missing_ns, now_ns), now_ns);
        Booking { time_ns, ..booking }
    }

    /// Ends a booking: `units` were used. Missing ones are owed. The others are returned, as far as the bucket has not filled meanwhile.
    pub fn end(&mut self, rate: Rate, booking: Booking, units: u64, now_ns: u64) {
        self.pass(now_ns);
        let returnable_ns = self.returnable.remove(&booking.number).unwrap_or(0);
        self.returnable_ns -= returnable_ns;
        let cost_ns = rate.time_of(units);
        match booking.time_ns.checked_sub(cost_ns) {
            Some(unused_ns) => self.full_at_ns -= unused_ns.min(returnable_ns),
            None => self.full_at_ns = rate.owe_time(self.full_at_ns, cost_ns - booking.time_ns, now_ns),
        }
    }

    /// Takes `units` even if there are too few.
    pub fn owe(&mut self, rate: Rate, units: u64, now_ns: u64) {
        self.pass(now_ns);
        self.full_at_ns = rate.owe(self.full_at_ns, units, now_ns);
    }

    /// Takes so much for a booking that the bucket will be full at `after_ns`. Returns the time in which that comes.
    fn take(&mut self, number: u64, after_ns: u64, now_ns: u64) -> u64 {
        self.pass(now_ns);
        let taken_ns = after_ns.saturating_sub(self.full_at_ns.max(now_ns));
        if taken_ns > 0 {
            *self.returnable.entry(number).or_default() += taken_ns;
            self.returnable_ns += taken_ns;
        }
        self.full_at_ns = after_ns;
        taken_ns
    }

    /// Lowers what may be returned to what is missing in the bucket now. This must come before anything is taken or returned.
    fn pass(&mut self, now_ns: u64) {
        let missing_ns = self.full_at_ns.saturating_sub(now_ns);
        while let Some(excess_ns) = self.returnable_ns.checked_sub(missing_ns).filter(|excess_ns| *excess_ns > 0) {
            let Some(mut oldest) = self.returnable.first_entry() else { return };
            let lost_ns = excess_ns.min(*oldest.get());
            *oldest.get_mut() -= lost_ns;
            self.returnable_ns -= lost_ns;
            if *oldest.get() == 0 {
                oldest.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const RATE: Rate = Rate { per_second: 1000, burst: 2000 };

    fn book(bucket: &mut BookedBucket, bytes: u64, now_ns: u64) -> Booking {
        bucket.book(RATE, Some(bytes), now_ns).expect("as much is left")
    }

    /// Books all that is left. Returns how much it was.
    fn drain(bucket: &mut BookedBucket, now_ns: u64) -> u64 {
        (0..11).map(|bit| 1 << bit).rev().filter(|bytes| bucket.book(RATE, Some(*bytes), now_ns).is_ok()).sum()
    }

    #[track_caller]
    fn check_left(bucket: &BookedBucket, now_ns: u64, expect: u64) {
        assert_eq!(drain(&mut bucket.clone(), now_ns), expect);
    }

    #[test]
    fn what_is_returned_at_once_is_left_again() {
        let mut bucket = BookedBucket::default();
        let [first, second] = [1500, 500].map(|bytes| book(&mut bucket, bytes, S));
        check_left(&bucket, S, 0);
        bucket.end(RATE, first, 400, S);
        check_left(&bucket, S, 1100);
        bucket.end(RATE, second, 0, S);
        check_left(&bucket, S, 1600);
    }

    #[test]
    fn what_filled_again_while_a_booking_was_open_is_not_returned() {
        let mut bucket = BookedBucket::default();
        let held = book(&mut bucket, 2000, S);
        // 1,500 have come since then, and 400 of them are used.
        let used = book(&mut bucket, 400, S + S * 3 / 2);
        bucket.end(RATE, used, 400, S + S * 3 / 2);
        check_left(&bucket, S + S * 3 / 2, 1100);
        bucket.end(RATE, held, 0, S + S * 3 / 2);
        check_left(&bucket, S + S * 3 / 2, 1600);
    }

    #[test]
    fn a_booking_that_is_old_returns_nothing_and_takes_nothing_from_a_new_one() {
        let mut bucket = BookedBucket::default();
        let old = book(&mut bucket, 2000, S);
        let new = book(&mut bucket, 2000, 3 * S);
        bucket.end(RATE, old, 0, 3 * S);
        check_left(&bucket, 3 * S, 0);
        bucket.end(RATE, new, 500, 3 * S);
        check_left(&bucket, 3 * S, 1500);
    }

    #[test]
    fn a_booking_in_the_place_of_a_returned_one_loses_after_older_ones() {
        let mut bucket = BookedBucket::default();
        let [first, second] = [1000, 1000].map(|bytes| book(&mut bucket, bytes, S));
        bucket.end(RATE, first, 0, S);
        let third = book(&mut bucket, 1000, S);
        // A second later the bucket lacks what one of them took.
        bucket.end(RATE, second, 0, 2 * S);
        assert_eq!(drain(&mut bucket, 2 * S), 1000);
        bucket.end(RATE, third, 0, 2 * S);
        check_left(&bucket, 2 * S, 1000);
    }

    #[test]
    fn what_came_beyond_a_booking_is_owed_and_may_be_returned() {
        let mut bucket = BookedBucket::default();
        let booking = book(&mut bucket, 1000, S);
        let booking = bucket.extend(RATE, booking, 3000, S);
        assert_eq!(bucket.wait(RATE, Booking::default(), S), S + S / 1000);
        assert_eq!(bucket.wait(RATE, booking, S), 0, "the message itself has paid");
        assert_eq!(bucket.extend(RATE, booking, 2000, S), booking, "more are booked");
        bucket.end(RATE, booking, 500, S);
        check_left(&bucket, S, 1500);
        let booking = book(&mut bucket, 1000, S);
        bucket.end(RATE, booking, 2500, S);
        assert_eq!(bucket.wait(RATE, Booking::default(), S), S + S / 1000);
    }

    #[test]
    fn whatever_is_booked_and_returned_the_bucket_never_gives_more_than_its_burst_at_once() {
        let (mut bucket, mut open, mut now_ns) = (BookedBucket::default(), Vec::new(), S);
        let mut seed = 1_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..20_000 {
            match random(4) {
                0 | 1 => open.extend(bucket.book(RATE, Some(1 + random(1500)), now_ns)),
                2 if !open.is_empty() => {
                    let booking: Booking = open.swap_remove(random(open.len() as u64) as usize);
                    bucket.end(RATE, booking, random(2) * booking.time_ns / 1_000_000, now_ns);
                }
                _ => now_ns += random(S),
            }
            // All that is open is given up now, one after the other, and what is left is used each time.
            let mut after = bucket.clone();
            let given: u64 = open
                .iter()
                .map(|booking| {
                    after.end(RATE, *booking, 0, now_ns);
                    drain(&mut after, now_ns)
                })
                .sum();
            assert!(given <= RATE.burst, "{given} at {now_ns}");
            open.truncate(64);
            assert!(bucket.returnable.len() <= bucket.returnable_ns as usize && bucket.returnable_ns <= 2 * S);
        }
    }
}
