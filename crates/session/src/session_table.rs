//! Who has a session, and may there be one more?

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use nerite_api::{Scope, check_operator};
use nerite_locks::Mutex;
use nerite_request::inspect::SessionView;

use crate::in_flight::InFlight;
use crate::limits::{CLIENT_CHARS_MAX, OPERATOR_SESSIONS_MAX, SESSIONS_MAX};
use crate::outbox::Outbox;
use crate::peer::Peer;

/// All sessions, by number.
pub(crate) struct SessionTable {
    own_uid: u32,
    /// Sessions of one user, unless it is the server's own.
    per_user_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: u64,
    members: BTreeMap<u64, Member>,
}

/// One session as others see it.
pub(crate) struct Member {
    peer: Peer,
    since: Instant,
    client: String,
    operator_only: bool,
    parts: Option<Parts>,
}

/// What a session is made of. Others look at it under the table's lock only and keep nothing of it, so that the session's
/// own task is the one that takes it down.
pub(crate) struct Parts {
    pub(crate) scope: Arc<Scope>,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) outbox: Arc<Outbox>,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    #[error("{SESSIONS_MAX} sessions are open; try again later")]
    All,
    #[error(
        "user {uid} has {max} sessions open, which is all that one user may have; close some, or raise --sessions-per-user-max"
    )]
    User { uid: u32, max: usize },
}

/// A session's place; given back when dropped.
pub(crate) struct SessionEntry {
    sessions: Arc<SessionTable>,
    number: u64,
    uid: u32,
    /// Why it is one of the operator's reserve, if it is.
    reserve: Option<Full>,
}

impl SessionTable {
    /// For a server of this user; others may have so many sessions each.
    pub(crate) fn new(own_uid: u32, per_user_max: usize) -> Arc<SessionTable> {
        Arc::new(SessionTable { own_uid, per_user_max, state: Mutex::default() })
    }

    /// A place for `peer`, if there is one.
    pub(crate) fn reserve(self: &Arc<SessionTable>, peer: Peer) -> Result<SessionEntry, Full> {
        let uid = peer.uid;
        let mut state = self.lock();
        let reserve = admit(&Taken::of(state.members.values(), uid), uid, self)?;
        let operator_only = reserve.is_some();
        state.last += 1;
        let number = state.last;
        let (since, client) = (Instant::now(), String::new());
        state.members.insert(number, Member { peer, since, client, operator_only, parts: None });
        drop(state);
        Ok(SessionEntry { sessions: Arc::clone(self), number, uid, reserve })
    }

    /// The user who runs the server.
    pub(crate) fn own_uid(&self) -> u32 {
        self.own_uid
    }

    /// Shows each session from `first` on to `look`, by number, until it has seen enough (false).
    pub(crate) fn each_from(&self, first: u64, mut look: impl FnMut(u64, &Member, &Parts) -> bool) {
        let state = self.lock();
        for (number, member) in state.members.range(first..) {
            let Some(parts) = &member.parts else { continue };
            if !look(*number, member, parts) {
                return;
            }
        }
    }

    /// Shows the session of that number to `look`.
    pub(crate) fn one<T>(&self, number: u64, look: impl FnOnce(&Parts) -> T) -> Option<T> {
        self.lock().members.get(&number)?.parts.as_ref().map(look)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Member {
    /// Who it is and since when; the rest is for others to fill in.
    pub(crate) fn view(&self, number: u64) -> SessionView {
        let Member { peer: Peer { uid, pid, command }, since, client, operator_only, .. } = self;
        let age_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (command, client) = (command.clone(), client.clone());
        let operator_only = *operator_only;
        SessionView { number, pid: *pid, uid: *uid, command, client, age_ms, operator_only, ..SessionView::default() }
    }
}

impl SessionEntry {
    /// The session is there.
    pub(crate) fn seat(&self, parts: Parts) {
        if let Some(member) = self.sessions.lock().members.get_mut(&self.number) {
            member.parts = Some(parts);
        }
    }

    /// The client has said what it is.
    pub(crate) fn introduce(&self, client: &str) {
        if let Some(member) = self.sessions.lock().members.get_mut(&self.number) {
            member.client = client.chars().take(CLIENT_CHARS_MAX).collect();
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    pub(crate) fn sessions(&self) -> &SessionTable {
        &self.sessions
    }

    /// Whether it is one of the operator's reserve, for sessions that say so and for the operator's calls alone; if so, why
    /// there was no other.
    pub(crate) fn reserve(&self) -> Option<Full> {
        self.reserve
    }
}

impl Drop for SessionEntry {
    fn drop(&mut self) {
        let gone = self.sessions.lock().members.remove(&self.number);
        drop(gone);
    }
}

/// Places that are taken.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    all: usize,
    of_user: usize,
    of_reserve: usize,
}

impl Taken {
    fn of<'a>(members: impl Iterator<Item = &'a Member>, uid: u32) -> Taken {
        members.fold(Taken::default(), |taken, member| Taken {
            all: taken.all + usize::from(!member.operator_only),
            of_user: taken.of_user + usize::from(!member.operator_only && member.peer.uid == uid),
            of_reserve: taken.of_reserve + usize::from(member.operator_only),
        })
    }
}

/// Whether there is a place for a session of `uid` (`None`), only one of the reserve (and why), or none.
fn admit(taken: &Taken, uid: u32, sessions: &SessionTable) -> Result<Option<Full>, Full> {
    let SessionTable { own_uid, per_user_max: max, .. } = *sessions;
    let full = if taken.all >= SESSIONS_MAX {
        Full::All
    } else if uid != own_uid && taken.of_user >= max {
        Full::User { uid, max }
    } else {
        return Ok(None);
    };
    let reserve = check_operator(uid, own_uid).is_ok() && taken.of_reserve < OPERATOR_SESSIONS_MAX;
    if reserve { Ok(Some(full)) } else { Err(full) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 64;

    fn user(uid: u32) -> Full {
        Full::User { uid, max: MAX }
    }

    #[track_caller]
    fn check(all: usize, of_user: usize, of_reserve: usize, uid: u32, expect: Result<Option<Full>, Full>) {
        let sessions = SessionTable::new(1000, MAX);
        assert_eq!(
            admit(&Taken { all, of_user, of_reserve }, uid, &sessions),
            expect,
            "{all} {of_user} {of_reserve} {uid}"
        );
    }

    #[test]
    fn one_user_cannot_take_all_places_unless_it_is_the_servers_own() {
        check(0, 0, 0, 7, Ok(None));
        check(255, 63, 4, 7, Ok(None));
        check(64, 64, 0, 7, Err(user(7)));
        check(64, 64, 0, 1000, Ok(None));
        check(255, 255, 0, 1000, Ok(None));
    }

    #[test]
    fn an_operator_finds_a_place_in_the_reserve_when_all_are_taken() {
        check(256, 0, 0, 7, Err(Full::All));
        check(256, 256, 3, 1000, Ok(Some(Full::All)));
        check(256, 0, 3, 0, Ok(Some(Full::All)));
        check(256, 0, 4, 0, Err(Full::All));
        check(64, 64, 0, 0, Ok(Some(user(0))));
        check(64, 64, 4, 0, Err(user(0)));
    }

    #[test]
    fn a_place_is_given_back_and_its_number_is_not() {
        let sessions = SessionTable::new(1000, MAX);
        let peer = || Peer { uid: 7, pid: 1, command: String::new() };
        let places: Vec<_> = (0..MAX).map(|_| sessions.reserve(peer())).collect();
        assert!(places.iter().all(Result::is_ok));
        assert_eq!(sessions.reserve(peer()).err(), Some(user(7)));
        drop(places);
        assert_eq!(sessions.reserve(peer()).map(|place| place.number()), Ok(MAX as u64 + 1));
    }
}
