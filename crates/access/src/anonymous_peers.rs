//! How much has each peer without a token used?
//!
//! All requests without a token have the same rules and are counted together, but each peer has quotas of its own, so that none uses up those of others.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use nerite_locks::Mutex;

use crate::limits::{ANONYMOUS_PEERS_MAX, FORGET_INTERVAL};
use crate::token::Token;

/// The peers that sent requests without a token lately.
#[derive(Debug, Default)]
pub(crate) struct AnonymousPeers(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The rules of requests without a token, with the buckets of a peer.
    by_peer: HashMap<String, Arc<Token>>,
    forgot_at_ns: u64,
}

impl AnonymousPeers {
    /// The rules `anonymous` with the buckets of this peer. If there are too many peers, those of `anonymous`, which further peers share.
    pub fn token_of(&self, peer: String, anonymous: &Arc<Token>, now_ns: u64) -> Arc<Token> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(token) = known.by_peer.get_mut(&peer) {
            if token.generation != anonymous.generation {
                *token = Arc::new(anonymous.with_buckets(&token.buckets));
            }
            return Arc::clone(token);
        }
        if known.by_peer.len() >= ANONYMOUS_PEERS_MAX {
            known.forget(now_ns);
        }
        if known.by_peer.len() >= ANONYMOUS_PEERS_MAX {
            return Arc::clone(anonymous);
        }
        let token = Arc::new(anonymous.with_buckets(&Arc::default()));
        known.by_peer.insert(peer, Arc::clone(&token));
        token
    }
}

impl Known {
    /// Forgets peers that have used nothing for long enough. To look at all of them takes time, so it is not done for each request.
    fn forget(&mut self, now_ns: u64) {
        if u128::from(now_ns.saturating_sub(self.forgot_at_ns)) < FORGET_INTERVAL.as_nanos() {
            return;
        }
        self.forgot_at_ns = now_ns;
        // Answers to requests under way may still be owed.
        let is_used = |token: &Arc<Token>| Arc::strong_count(token) > 1 || Arc::strong_count(&token.buckets) > 1;
        self.by_peer.retain(|_, token| is_used(token) || !token.buckets.are_full(now_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Booking, Tokens};

    const S: u64 = 1_000_000_000;

    fn rules() -> Arc<Token> {
        let text = "[anonymous]\nscopes = [\"infer\"]\nrequests_per_second = 1\nburst = 1\n";
        Tokens::from_text(text).expect("rules").find(None).expect("there are rules without a token")
    }

    #[test]
    fn no_peer_uses_up_the_quota_of_another() {
        let (peers, rules) = (AnonymousPeers::default(), rules());
        let of = |peer: &str| peers.token_of(peer.to_owned(), &rules, S);
        assert!(
            of("user 1").take_request(Booking::default(), S).is_ok()
                && of("user 1").take_request(Booking::default(), S).is_err()
        );
        assert!(of("user 2").take_request(Booking::default(), S).is_ok());
        assert_eq!(of("user 3").counts().passed, 2, "they are counted together");
    }

    #[test]
    fn the_peers_are_bounded_and_those_with_full_quotas_are_forgotten() {
        let (peers, rules) = (AnonymousPeers::default(), rules());
        let take =
            |at: usize, now_ns| peers.token_of(at.to_string(), &rules, now_ns).take_request(Booking::default(), now_ns);
        assert!((0..ANONYMOUS_PEERS_MAX).all(|at| take(at, S).is_ok()));
        assert!(
            take(ANONYMOUS_PEERS_MAX, S).is_ok() && take(ANONYMOUS_PEERS_MAX + 1, S).is_err(),
            "further peers share one quota"
        );
        assert!(take(0, S).is_err());
        assert!(take(ANONYMOUS_PEERS_MAX + 2, 3 * S).is_ok() && take(ANONYMOUS_PEERS_MAX + 3, 3 * S).is_ok());
        assert!(peers.0.lock().expect("nobody panicked").by_peer.len() <= ANONYMOUS_PEERS_MAX);
    }
}
