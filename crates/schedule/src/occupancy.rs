//! May one more request of a peer wait in a queue with a limit?
//!
//! A peer may have three quarters of the places that the other peers leave, and one place as long as any is free (dynamic thresholds, A. Choudhury and
//! E. Hahne, 1998). So a peer that comes later finds places, and a request that waits never has to leave for another one.

use std::collections::HashMap;

/// The least limit of a queue in which one peer may have `requests` if there are no others.
pub fn limit_of_share(requests: usize) -> usize {
    requests.div_ceil(3).saturating_mul(4)
}

/// The number of waiting requests, by peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Occupancy {
    all: usize,
    /// Peers without waiting requests have no entry.
    by_peer: HashMap<u64, usize>,
}

impl Occupancy {
    /// Requests of all peers.
    pub fn all(&self) -> usize {
        self.all
    }

    /// Requests of that peer.
    pub fn of(&self, peer: u64) -> usize {
        self.by_peer.get(&peer).copied().unwrap_or(0)
    }

    /// Counts one more request of that peer.
    pub fn add(&mut self, peer: u64) {
        self.all += 1;
        *self.by_peer.entry(peer).or_default() += 1;
    }

    /// Counts one request of that peer less.
    pub fn remove(&mut self, peer: u64) {
        let Some(own) = self.by_peer.get_mut(&peer) else { return };
        *own -= 1;
        self.all -= 1;
        if *own == 0 {
            self.by_peer.remove(&peer);
        }
    }

    /// Whether one more request of that peer may wait, if at most `limit` requests of all peers may.
    pub fn has_place(&self, peer: u64, limit: usize) -> bool {
        let own = self.of(peer);
        let places = limit.saturating_sub(self.all - own);
        // Three quarters, rounded down without an overflow.
        let share = places - places.div_ceil(4);
        own < share.max(1).min(places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each letter is a request of that peer that comes to the queue. Checks which of them find a place.
    #[track_caller]
    fn check(limit: usize, coming: &str, expect: &str) {
        let mut occupancy = Occupancy::default();
        let mut waiting = String::new();
        for peer in coming.chars() {
            if occupancy.has_place(u64::from(peer), limit) {
                occupancy.add(u64::from(peer));
                waiting.push(peer);
            }
        }
        assert_eq!(waiting, expect, "{limit} {coming}");
        waiting.chars().for_each(|peer| occupancy.remove(u64::from(peer)));
        assert!(occupancy.all() == 0 && occupancy.by_peer.is_empty(), "{limit} {coming}");
    }

    #[test]
    fn a_peer_has_three_quarters_of_what_others_leave_and_at_least_one() {
        check(0, "a", "");
        check(1, "aab", "a");
        check(2, "aab", "ab");
        check(4, "aaaabbc", "aaab");
        check(8, "aaaaaaaabbbcc", "aaaaaabc");
        check(12, "abababababababababab", "ababababab");
        check(usize::MAX, "aab", "aab");
    }

    #[test]
    fn a_limit_is_large_enough_for_its_share() {
        for requests in [0, 1, 2, 3, 4, 99, 100, 101] {
            let (limit, mut occupancy) = (limit_of_share(requests), Occupancy::default());
            while occupancy.has_place(0, limit) {
                occupancy.add(0);
            }
            assert!((requests..requests + 3).contains(&occupancy.all()), "{requests} of {limit}");
        }
    }

    #[test]
    fn peers_that_all_send_as_much_as_they_can_leave_places_for_others() {
        let crowd = "abcdefgh".repeat(100);
        let mut occupancy = Occupancy::default();
        for peer in crowd.bytes().map(u64::from) {
            if occupancy.has_place(peer, 100) {
                occupancy.add(peer);
            }
        }
        // Each has three times as much as is free.
        assert_eq!((occupancy.all(), occupancy.of(u64::from(b'a'))), (96, 12));
        assert!(occupancy.has_place(0, 100));
    }
}
