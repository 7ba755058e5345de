//! Which sessions are open, and may one more be opened?

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use nerite_api::{Scope, check_operator};
use nerite_listen::SocketEntry;
use nerite_locks::Mutex;
use nerite_request::inspect::SessionView;

use crate::in_flight::InFlight;
use crate::limits::{CLIENT_CHARS_MAX, OPERATOR_SESSIONS_MAX, SESSIONS_MAX};
use crate::outbox::Outbox;
use crate::peer::Peer;

/// All open sessions, by number.
pub(crate) struct SessionTable {
    own_uid: u32,
    /// The most sessions of one user. Does not apply to the server's own user.
    per_user_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: u64,
    members: BTreeMap<u64, Member>,
}

/// The entry of one session, for other sessions.
pub(crate) struct Member {
    peer: Peer,
    since: Instant,
    client: String,
    operator_only: bool,
    parts: Option<Parts>,
}

/// The parts of a session. Other sessions access them only under the table's lock and keep no reference, so that the session's own task drops them.
pub(crate) struct Parts {
    pub(crate) scope: Arc<Scope>,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) outbox: Arc<Outbox>,
}

/// Why no session can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    #[error("{SESSIONS_MAX} sessions are open; try again later")]
    All,
    #[error(
        "user {uid} has {max} sessions open, which is all that one user may have; close some, or raise --sessions-per-user-max"
    )]
    User { uid: u32, max: usize },
}

/// A session's entry in the table. When the entry is dropped, others no longer find the session.
pub(crate) struct SessionEntry {
    place: Arc<SessionPlace>,
    uid: u32,
    /// `Some` if the session has a place of the operator's reserve: why no other place was free.
    reserve: Option<Full>,
}

/// The place of a session in the counts of open sessions. It is freed when the session's entry is dropped, or when the socket is closed if that is later.
struct SessionPlace {
    sessions: Arc<SessionTable>,
    number: u64,
}

impl SessionTable {
    /// A table for a server of user `own_uid`. Any other user may have `per_user_max` sessions.
    pub(crate) fn new(own_uid: u32, per_user_max: usize) -> Arc<SessionTable> {
        Arc::new(SessionTable { own_uid, per_user_max, state: Mutex::default() })
    }

    /// Adds an entry for `peer`, if one more session may be opened.
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
        let place = Arc::new(SessionPlace { sessions: Arc::clone(self), number });
        Ok(SessionEntry { place, uid, reserve })
    }

    /// The user that runs the server.
    pub(crate) fn own_uid(&self) -> u32 {
        self.own_uid
    }

    /// Calls `each` for each session from number `first` on, in order, until it returns false.
    pub(crate) fn each_from(&self, first: u64, mut each: impl FnMut(u64, &Member, &Parts) -> bool) {
        let state = self.lock();
        for (number, member) in state.members.range(first..) {
            let Some(parts) = &member.parts else { continue };
            if !each(*number, member, parts) {
                return;
            }
        }
    }

    /// Calls `each` for the session with that number.
    pub(crate) fn one<T>(&self, number: u64, each: impl FnOnce(&Parts) -> T) -> Option<T> {
        self.lock().members.get(&number)?.parts.as_ref().map(each)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Member {
    /// The user of the session.
    pub(crate) fn uid(&self) -> u32 {
        self.peer.uid
    }

    /// The client and the time of the session. The caller fills in the rest.
    pub(crate) fn view(&self, number: u64) -> SessionView {
        let Member { peer: Peer { uid, pid, command }, since, client, operator_only, .. } = self;
        let age_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (command, client) = (command.clone(), client.clone());
        let operator_only = *operator_only;
        SessionView { number, pid: *pid, uid: *uid, command, client, age_ms, operator_only, ..SessionView::default() }
    }
}

impl SessionEntry {
    /// The place of the session, for the socket to hold, because the socket may be closed after the entry is dropped.
    pub(crate) fn socket_entry(&self) -> Arc<dyn SocketEntry> {
        let place: Arc<SessionPlace> = Arc::clone(&self.place);
        place
    }

    /// Sets the parts of the session.
    pub(crate) fn set_parts(&self, parts: Parts) {
        if let Some(member) = self.sessions().lock().members.get_mut(&self.number()) {
            member.parts = Some(parts);
        }
    }

    /// Sets the client's name.
    pub(crate) fn set_client(&self, client: &str) {
        if let Some(member) = self.sessions().lock().members.get_mut(&self.number()) {
            member.client = client.chars().take(CLIENT_CHARS_MAX).collect();
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.place.number
    }

    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    pub(crate) fn sessions(&self) -> &Arc<SessionTable> {
        &self.place.sessions
    }

    /// Whether the session has a place of the operator's reserve, and if so, why no other place was free. Such a session must say so in Hello, and
    /// may only make the operator's calls.
    pub(crate) fn reserve(&self) -> Option<Full> {
        self.reserve
    }
}

impl Drop for SessionEntry {
    fn drop(&mut self) {
        let parts = self.sessions().lock().members.get_mut(&self.number()).and_then(|member| member.parts.take());
        drop(parts);
    }
}

impl SocketEntry for SessionPlace {}

impl Drop for SessionPlace {
    fn drop(&mut self) {
        self.sessions.lock().members.remove(&self.number);
    }
}

/// Numbers of open sessions.
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

/// `None` if a session of `uid` may be opened. If only a place of the reserve is free: the reason. An error if none is free.
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
    fn only_the_servers_own_user_can_take_all_places() {
        check(0, 0, 0, 7, Ok(None));
        check(255, 63, 4, 7, Ok(None));
        check(64, 64, 0, 7, Err(user(7)));
        check(64, 64, 0, 1000, Ok(None));
        check(255, 255, 0, 1000, Ok(None));
    }

    #[test]
    fn an_operator_gets_a_place_of_the_reserve_when_all_others_are_taken() {
        check(256, 0, 0, 7, Err(Full::All));
        check(256, 256, 3, 1000, Ok(Some(Full::All)));
        check(256, 0, 3, 0, Ok(Some(Full::All)));
        check(256, 0, 4, 0, Err(Full::All));
        check(64, 64, 0, 0, Ok(Some(user(0))));
        check(64, 64, 4, 0, Err(user(0)));
    }

    #[test]
    fn a_place_is_reused_and_its_number_is_not() {
        let sessions = SessionTable::new(1000, MAX);
        let peer = || Peer { uid: 7, pid: 1, command: String::new() };
        let places: Vec<_> = (0..MAX).map(|_| sessions.reserve(peer())).collect();
        assert!(places.iter().all(Result::is_ok));
        assert_eq!(sessions.reserve(peer()).err(), Some(user(7)));
        drop(places);
        assert_eq!(sessions.reserve(peer()).map(|entry| entry.number()), Ok(MAX as u64 + 1));
    }
}
