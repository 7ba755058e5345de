//! What does a client of another front end see of the sessions?
//! The operator sees all sessions. Other clients see the sessions of their own user.

use std::sync::Arc;

use nerite_api::{Api, Operator};
use nerite_request::Peer;
use nerite_request::inspect::{LeaseView, RegionView, SessionView};

use crate::session_table::{Member, Parts, SessionTable};

/// Shows sessions and their shared memory. Cheap to clone.
#[derive(Clone)]
pub struct Inspector {
    sessions: Arc<SessionTable>,
    /// `None` where the server's user cannot be its operator, which does not happen.
    operator: Option<Operator>,
}

impl Inspector {
    pub(crate) fn new(api: &Api, sessions: Arc<SessionTable>) -> Inspector {
        let operator = api.operator(sessions.own_uid(), sessions.own_uid()).ok();
        Inspector { sessions, operator }
    }

    /// The sessions that `peer` may see, by number. There are at most [`SESSIONS_MAX`](crate::limits::SESSIONS_MAX) and a few of the operator's.
    pub fn sessions(&self, peer: &Peer) -> Vec<SessionView> {
        let mut found = Vec::new();
        self.each_seen_by(peer, |operator, number, member, parts| {
            let mut view = operator.session(&parts.scope, member.view(number));
            view.inferences = parts.in_flight.count() as u64;
            found.push(view);
            true
        });
        found
    }

    /// Up to `count` regions of these sessions.
    pub fn regions(&self, peer: &Peer, count: usize) -> Vec<RegionView> {
        let mut found = Vec::new();
        self.each_seen_by(peer, |operator, session, _, parts| {
            let some = operator.regions(Some(&parts.scope), None, count - found.len());
            found.extend(some.into_iter().map(|region| RegionView { session, ..region }));
            found.truncate(count);
            found.len() < count
        });
        found
    }

    /// Up to `count` leases of these sessions, each with the number of its session.
    pub fn leases(&self, peer: &Peer, count: usize) -> Vec<(u64, LeaseView)> {
        let mut found = Vec::new();
        self.each_seen_by(peer, |operator, session, _, parts| {
            found.extend(operator.leases(&parts.scope).into_iter().map(|lease| (session, lease)));
            found.truncate(count);
            found.len() < count
        });
        found
    }

    /// Calls `look` with each session that `peer` may see, until `look` returns false.
    fn each_seen_by(&self, peer: &Peer, mut look: impl FnMut(&Operator, u64, &Member, &Parts) -> bool) {
        let Some(operator) = &self.operator else { return };
        self.sessions.each_from(0, |number, member, parts| {
            !may_see(peer, member.uid()) || look(operator, number, member, parts)
        });
    }
}

fn may_see(peer: &Peer, uid: u32) -> bool {
    peer.is_operator() || peer.uid() == Some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(peer: &Peer, uid: u32, seen: bool) {
        assert_eq!(may_see(peer, uid), seen, "{peer} {uid}");
    }

    #[test]
    fn the_operator_sees_all_sessions_and_others_their_own() {
        let stranger = Peer::User { uid: 4_000_000_001 };
        check(&Peer::own(), 4_000_000_001, true);
        check(&stranger, 4_000_000_001, true);
        check(&stranger, 4_000_000_002, false);
        check(&Peer::Unknown, 0, false);
        check(&Peer::Unidentified, 0, false);
        check(&Peer::of_address([127, 0, 0, 1].into()), 0, false);
    }
}
