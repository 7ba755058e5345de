//! How many loads and unloads may one client have under way?
//!
//! Each load or unload occupies a thread until it ends, even while it waits for other operations or after its client has gone. Without a bound one
//! client would take all threads.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_request::{Peer, Status};

/// The most loads and unloads of one client that are under way.
const CALLS_PER_PEER_MAX: usize = 512;
/// The most of all clients together. Each is a thread, and the system's limit on threads is often 4,096 for a container.
const CALLS_MAX: usize = 2048;
/// A client may take one in this many of the places that the other clients leave free. So places are left for clients that come later.
const FREE_PLACES_PER_CALL: usize = 4;

const _: () =
    assert!(CALLS_PER_PEER_MAX * FREE_PLACES_PER_CALL <= CALLS_MAX, "a client alone gets all that one may have");

/// The loads and unloads that are under way, by client.
#[derive(Debug, Default)]
pub(crate) struct ControlCalls(Arc<Mutex<HashMap<Peer, usize>>>);

/// Counts one load or unload until it is dropped.
#[derive(Debug)]
pub(crate) struct ControlCall {
    peer: Peer,
    calls: Arc<Mutex<HashMap<Peer, usize>>>,
}

impl ControlCalls {
    /// Counts one more call of this client. Err: the client has too many.
    pub fn begin(&self, peer: &Peer) -> Result<ControlCall, Status> {
        let mut calls = lock(&self.0);
        let all: usize = calls.values().sum();
        let own = calls.get(peer).copied().unwrap_or(0);
        // The operator's limit does not depend on the calls of other clients.
        let most = if peer.is_operator() { CALLS_PER_PEER_MAX } else { most_of_peer(all - own) };
        if own >= most {
            return Err(Status::unavailable(format!(
                "{own} loads and unloads of {peer} are under way, at most {most} may be while others have {}; wait until some \
                 have ended",
                all - own
            )));
        }
        calls.insert(peer.clone(), own + 1);
        Ok(ControlCall { peer: peer.clone(), calls: Arc::clone(&self.0) })
    }
}

/// How many calls one client may have under way, while the other clients have `others` under way.
fn most_of_peer(others: usize) -> usize {
    CALLS_MAX.saturating_sub(others).div_ceil(FREE_PLACES_PER_CALL).min(CALLS_PER_PEER_MAX)
}

impl Drop for ControlCall {
    fn drop(&mut self) {
        let mut calls = lock(&self.calls);
        let Some(count) = calls.get_mut(&self.peer) else { return };
        *count -= 1;
        if *count == 0 {
            calls.remove(&self.peer);
        }
    }
}

fn lock(calls: &Mutex<HashMap<Peer, usize>>) -> MutexGuard<'_, HashMap<Peer, usize>> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_so_many_calls_under_way_and_leaves_those_of_others_alone() {
        let (calls, one, other) = (ControlCalls::default(), Peer::User { uid: 1 }, Peer::User { uid: 2 });
        let mut all: Vec<_> = (0..CALLS_PER_PEER_MAX).map(|_| calls.begin(&one).unwrap()).collect();
        let refused = calls.begin(&one).unwrap_err().message;
        assert!(
            refused.starts_with("512 loads and unloads of ")
                && refused.contains("at most 512 may be while others have 0"),
            "{refused}"
        );
        assert!(calls.begin(&other).is_ok());
        all.pop();
        all.push(calls.begin(&one).unwrap());
        drop(all);
        assert!(lock(&calls.0).is_empty());
    }

    #[test]
    fn a_client_leaves_most_of_the_free_places_to_others() {
        let mut others = 0;
        let mut found = Vec::new();
        while most_of_peer(others) > 0 {
            found.push(most_of_peer(others));
            others += most_of_peer(others);
        }
        assert_eq!((found[..4].to_vec(), others), (vec![512, 384, 288, 216], CALLS_MAX));
        assert!(found.len() > 20, "so many clients must work together to take all places: {}", found.len());
        assert_eq!((most_of_peer(CALLS_MAX - 1), most_of_peer(CALLS_MAX), most_of_peer(usize::MAX)), (1, 0, 0));
    }

    #[test]
    fn the_operator_has_its_places_while_others_have_all_of_theirs() {
        let calls = ControlCalls::default();
        let taken: Vec<_> = (1..)
            .map(|uid| calls.begin(&Peer::User { uid: 3_000_000_000 + uid / 64 }))
            .take(2 * CALLS_MAX)
            .filter_map(Result::ok)
            .collect();
        assert_eq!(taken.len(), CALLS_MAX);
        assert!(calls.begin(&Peer::User { uid: 4_000_000_000 }).is_err());
        assert!(calls.begin(&Peer::own()).is_ok());
    }
}
