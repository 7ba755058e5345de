//! What do the instances of a model share?
//!
//! On the host: the session, with its graph, its weights and its threads, which exist once however many instances run. Each instance has what
//! belongs to one run: its options, and what it counts on the thread that calls.
//!
//! ```text
//!  instance 0 ── Run ──┐
//!  instance 1 ── Run ──┼──► session: graph, weights, pool of threads
//!  instance 2 ── Run ──┘
//! ```
//!
//! Which run a thread of the pool worked for is not known. If one divided an integer by zero while several ran, each of these runs is run again
//! alone: then it is known whose it was, and the others have their results.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use ort::session::Session;
use ort::{AsPointer, sys};

use crate::traps::SessionTraps;

/// A session that several instances may run at a time.
pub struct SharedSession {
    session: Session,
    traps: SessionTraps,
    instances: AtomicUsize,
    /// Runs hold it to read; a run that must be alone, to write.
    turns: RwLock<()>,
}

/// One instance's part in a session.
pub struct Seat {
    session: Arc<SharedSession>,
    traps: SessionTraps,
}

impl SharedSession {
    /// A session that was opened, and what it counts.
    pub fn new(session: Session, traps: SessionTraps) -> SharedSession {
        SharedSession { session, traps, instances: AtomicUsize::new(0), turns: RwLock::new(()) }
    }

    /// The session, to look at.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Lets a run begin beside those of other instances.
    pub fn beside(&self) -> RwLockReadGuard<'_, ()> {
        self.turns.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other instance runs, and lets none begin.
    pub fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.turns.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether several instances have this session.
    pub fn has_several(&self) -> bool {
        self.instances.load(Ordering::Acquire) > 1
    }
}

impl Seat {
    /// One more instance of this session.
    pub fn of(session: &Arc<SharedSession>) -> Seat {
        session.instances.fetch_add(1, Ordering::AcqRel);
        Seat { session: Arc::clone(session), traps: session.traps.of_another_thread() }
    }

    /// The session. The library runs one several times side by side: `Run` needs no exclusive access.
    pub fn session_ptr(&self) -> *mut sys::OrtSession {
        self.session.session.ptr().cast_mut()
    }

    /// The session.
    pub fn shared(&self) -> &Arc<SharedSession> {
        &self.session
    }

    /// What this instance counts.
    pub fn traps(&self) -> &SessionTraps {
        &self.traps
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.session.instances.fetch_sub(1, Ordering::AcqRel);
    }
}
