//! Which thread closes a Unix socket whose close may take long?
//!
//! ```text
//!   sockets of user 1 ── queue ─┬─► nerite-close   one thread for each peer at a time
//!   sockets of user 2 ── queue ─┼─► nerite-close
//!   listeners ────────── queue ─┴─► …              CLOSERS_MAX of them, and a reserve for operators
//! ```
//! A thread that closes a socket also closes the descriptors that wait at it, and a descriptor that a client has passed may take hours to close
//! ([`crate::descriptors_passed`]). Where the kernel cannot refuse descriptors, all Unix sockets are closed here, even if nothing waits at them: before Linux
//! 6.9 the kernel collects the garbage of all users' Unix sockets in a thread that closes one. A close that takes long delays only other closes of the same
//! peer. A socket that waits is counted against its peer's connections, or sessions ([`SocketEntry`]). A connection that was rejected has no entry. So there is
//! a limit on such sockets, and beyond it no Unix socket accepts connections.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, LazyLock, MutexGuard, PoisonError};
use std::thread;

use nerite_locks::Mutex;
use nerite_request::Peer;
use rustix::net::{RecvFlags, recv};

use crate::limits::{CLOSER_IDLE, CLOSERS_MAX, CLOSERS_OPERATOR_RESERVE, REJECTED_MAX};

/// The entry of an open socket in the counts of connections or sessions. Dropped when the socket is closed.
pub trait SocketEntry: Send + Sync {
    /// The socket is about to be closed, which may take long.
    fn begins_to_close(&self) {}
}

/// The peer of a socket. `None` for the server's own sockets: listeners, and sockets that check whether another server listens.
pub(crate) type Owner = Option<Peer>;

/// A socket to be closed.
pub(crate) struct Closing {
    pub(crate) socket: OwnedFd,
    pub(crate) entry: Option<Arc<dyn SocketEntry>>,
}

/// The threads that close sockets, and the sockets that wait for them.
#[derive(Default)]
pub(crate) struct Closers {
    state: Mutex<State>,
    /// Notified when an owner has got its first waiting socket.
    added: Condvar,
}

#[derive(Default)]
struct State {
    /// The owners of waiting sockets, and those whose socket is being closed.
    queues: HashMap<Owner, VecDeque<Closing>>,
    /// The operators that wait for a thread. They go first.
    operators: VecDeque<Owner>,
    /// The other owners that wait for a thread.
    others: VecDeque<Owner>,
    /// Threads that close sockets of others.
    threads_of_others: usize,
    /// All threads.
    threads: usize,
    /// Threads that wait for a socket to close.
    idle: usize,
    /// Sockets of peers without an entry that wait or are being closed.
    rejected: usize,
}

/// The threads that close the sockets of this process.
pub(crate) static CLOSERS: LazyLock<Closers> = LazyLock::new(Closers::default);

impl Closers {
    /// Closes a socket on another thread. It should be shut down already.
    pub(crate) fn close(&'static self, owner: Owner, closing: Closing) {
        let mut state = self.lock();
        state.add(owner, closing);
        if state.idle >= state.attendable() {
            self.added.notify_one();
            return;
        }
        if state.threads >= CLOSERS_MAX + CLOSERS_OPERATOR_RESERVE {
            return;
        }
        state.threads += 1;
        drop(state);
        if let Err(error) = thread::Builder::new().name("nerite-close".to_owned()).spawn(|| self.work()) {
            // The next close tries it again.
            log::warn!("no thread to close connections: {error}; raise the limit on threads");
            self.lock().threads -= 1;
        }
    }

    /// Whether the limit on waiting sockets without an entry is reached. Then no connection may be accepted at a Unix socket.
    pub(crate) fn has_many_rejected(&self) -> bool {
        self.lock().rejected >= REJECTED_MAX
    }

    /// Closes sockets until none has arrived for [`CLOSER_IDLE`].
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(owner) = state.attend() {
                drop(state);
                self.close_all_of(&owner);
                state = self.lock();
                state.threads_of_others -= usize::from(!is_operator(&owner));
                continue;
            }
            state.idle += 1;
            let waited = self.added.wait_timeout_while(state, CLOSER_IDLE, |state| state.attendable() == 0);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
            if state.attendable() == 0 {
                state.threads -= 1;
                return;
            }
        }
    }

    /// Closes the waiting sockets of one owner. No other thread closes sockets of this owner meanwhile.
    fn close_all_of(&self, owner: &Owner) {
        loop {
            let next = {
                let mut state = self.lock();
                let next = state.queues.get_mut(owner).and_then(VecDeque::pop_front);
                if next.is_none() {
                    state.queues.remove(owner);
                }
                next
            };
            let Some(closing) = next else { return };
            let is_rejected = is_rejected(owner, &closing);
            close(closing);
            self.lock().rejected -= usize::from(is_rejected);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn add(&mut self, owner: Owner, closing: Closing) {
        self.rejected += usize::from(is_rejected(&owner, &closing));
        if let Some(queue) = self.queues.get_mut(&owner) {
            // A thread closes the sockets of this owner already, or the owner waits for a thread.
            queue.push_back(closing);
            return;
        }
        self.queues.insert(owner.clone(), VecDeque::from([closing]));
        let waiting = if is_operator(&owner) { &mut self.operators } else { &mut self.others };
        waiting.push_back(owner);
    }

    /// How many owners a thread may attend to now.
    fn attendable(&self) -> usize {
        self.operators.len() + self.others.len().min(CLOSERS_MAX - self.threads_of_others)
    }

    /// The owner that a thread attends to next.
    fn attend(&mut self) -> Option<Owner> {
        if let Some(operator) = self.operators.pop_front() {
            return Some(operator);
        }
        if self.threads_of_others >= CLOSERS_MAX {
            // The threads that are left are the reserve for operators.
            return None;
        }
        let owner = self.others.pop_front()?;
        self.threads_of_others += 1;
        Some(owner)
    }
}

fn is_operator(owner: &Owner) -> bool {
    owner.as_ref().is_some_and(Peer::is_operator)
}

fn is_rejected(owner: &Owner, closing: &Closing) -> bool {
    owner.is_some() && closing.entry.is_none()
}

/// Closes a socket, which may take hours.
fn close(closing: Closing) {
    let Closing { socket, entry } = closing;
    // If bytes were left at the close, the client would get a connection reset in place of an answer that it has not read. The client cannot send any more,
    // so the loop ends.
    while recv(&socket, &mut [0u8; 4096], RecvFlags::DONTWAIT).is_ok_and(|(_, len)| len > 0) {}
    drop(socket);
    drop(entry);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
    use std::time::Duration;

    use rustix::net::SocketType;

    use super::*;
    use crate::descriptors_passed::tests::pair;

    /// An entry whose drop, in the thread that closes, takes as long as the test wants.
    struct Slow {
        may_end: Mutex<Receiver<()>>,
        ended: Sender<()>,
    }

    impl SocketEntry for Slow {}

    impl Drop for Slow {
        fn drop(&mut self) {
            // An error means that the test has dropped the other end.
            let _ = self.may_end.lock().unwrap().recv();
            let _ = self.ended.send(());
        }
    }

    /// A socket that is being closed.
    struct Begun {
        /// Dropping it ends the close.
        until: Option<Sender<()>>,
        ended: Receiver<()>,
    }

    impl Begun {
        fn end(&mut self) {
            self.until = None;
        }

        #[track_caller]
        fn has_ended(&self) {
            self.ended.recv_timeout(Duration::from_secs(30)).unwrap();
        }

        #[track_caller]
        fn has_not_ended(&self) {
            assert_eq!(self.ended.recv_timeout(Duration::from_millis(50)), Err(RecvTimeoutError::Timeout));
        }
    }

    fn closers() -> &'static Closers {
        Box::leak(Box::default())
    }

    fn user(uid: u32) -> Peer {
        // No such user runs the tests.
        Peer::User { uid: 3_000_000_000 + uid }
    }

    fn socket() -> OwnedFd {
        pair(SocketType::STREAM).0
    }

    fn close_slowly(closers: &'static Closers, owner: impl Into<Owner>) -> Begun {
        let ((until, may_end), (report, ended)) = (channel(), channel());
        closers.close(
            owner.into(),
            Closing { socket: socket(), entry: Some(Arc::new(Slow { may_end: Mutex::new(may_end), ended: report })) },
        );
        Begun { until: Some(until), ended }
    }

    fn close_quickly(closers: &'static Closers, owner: impl Into<Owner>) -> Begun {
        let mut begun = close_slowly(closers, owner);
        begun.end();
        begun
    }

    #[test]
    fn a_close_that_takes_long_delays_those_of_its_own_peer_only() {
        let closers = closers();
        let mut slow = close_slowly(closers, user(1));
        let same = close_quickly(closers, user(1));
        for owner in [Some(user(2)), None, Some(Peer::own()), Some(user(2))] {
            close_quickly(closers, owner).has_ended();
        }
        same.has_not_ended();
        slow.end();
        slow.has_ended();
        same.has_ended();
    }

    #[test]
    fn a_thread_is_used_again_and_there_are_no_more_than_needed() {
        let closers = closers();
        for uid in 0..20 {
            close_quickly(closers, user(uid)).has_ended();
            // The thread is idle a moment after the socket is closed.
            while closers.lock().idle == 0 {
                thread::yield_now();
            }
        }
        assert_eq!(closers.lock().threads, 1);
    }

    #[test]
    fn with_all_threads_in_use_peers_wait_in_order_and_operators_do_not() {
        let closers = closers();
        let mut slow: Vec<_> =
            (0..u32::try_from(CLOSERS_MAX).unwrap()).map(|uid| close_slowly(closers, user(uid))).collect();
        let waiting = [100, 101].map(|uid| close_quickly(closers, user(uid)));
        for _ in 0..3 {
            close_quickly(closers, Peer::own()).has_ended();
        }
        for one in &waiting {
            // The threads of the reserve, which are idle now, are for operators alone.
            one.has_not_ended();
        }
        slow[7].end();
        for one in &waiting {
            one.has_ended();
        }
        drop(slow);
    }

    #[test]
    fn sockets_that_were_rejected_are_limited_until_they_are_closed() {
        let closers = closers();
        let mut slow = close_slowly(closers, user(1));
        for _ in 0..REJECTED_MAX {
            assert!(!closers.has_many_rejected());
            closers.close(Some(user(1)), Closing { socket: socket(), entry: None });
        }
        assert!(closers.has_many_rejected());
        slow.end();
        slow.has_ended();
        while closers.has_many_rejected() {
            thread::yield_now();
        }
    }

    #[test]
    fn a_client_gets_the_answer_that_it_has_not_read_and_no_reset() {
        for kind in [SocketType::STREAM, SocketType::SEQPACKET] {
            let (server, client) = pair(kind);
            rustix::net::send(&client, b"unread", rustix::net::SendFlags::empty()).unwrap();
            rustix::net::send(&server, b"why", rustix::net::SendFlags::empty()).unwrap();
            rustix::io::ioctl_fionbio(&client, false).unwrap();
            rustix::net::shutdown(&server, rustix::net::Shutdown::Both).unwrap();
            closers().close(Some(user(1)), Closing { socket: server, entry: None });
            let mut bytes = [0; 9];
            assert_eq!(recv(&client, &mut bytes, RecvFlags::empty()).unwrap().1, 3);
            assert_eq!(recv(&client, &mut bytes, RecvFlags::empty()).unwrap().1, 0);
        }
    }
}
