//! How does a lease become idle again?

use std::collections::HashSet;

use super::{Account, BorrowedLease, HeldLease};
use crate::lease::limits::ABANDONED_MAX;
use crate::lease::{Lease, LeaseError, LeaseName};

impl Account {
    /// Returns a lease of [`Account::take`]. The lease can be lent again once nothing holds it any more.
    pub fn put_back(&self, lease: &Lease) {
        let mut state = self.lock();
        if let Some(lent) = state.lent.remove(&lease.name()) {
            state.make_idle(lent.lease);
        }
    }

    /// Returns a lease. Requests that use it continue.
    pub fn give_back(&self, name: &str) -> Result<(), LeaseError> {
        let name = LeaseName::parse(name).ok_or(LeaseError::Unknown)?;
        let mut state = self.lock();
        let lent = state.lent.remove(&name).ok_or(LeaseError::Unknown)?;
        state.make_idle(lent.lease);
        Ok(())
    }

    /// Takes back a lease that was never reported to the client.
    pub fn cancel(&self, borrowed: BorrowedLease) {
        // If the descriptor did not reach the client, the lease must not be lent again without one. It is dropped together with `borrowed`.
        self.take_back(borrowed.lease.name(), borrowed.descriptor.is_none());
    }

    /// As [`Account::cancel`], for a lease of [`Account::place`].
    pub fn recall(&self, name: &str) {
        if let Some(name) = LeaseName::parse(name) {
            self.take_back(name, true);
        }
    }

    /// The client no longer waits for the requests with the tag `tag`. Leases that were placed for them become idle, except for those in `kept`. No
    /// more leases are placed for them.
    pub fn abandon(&self, tag: u64, kept: &[String]) {
        if tag == 0 {
            return;
        }
        let mut state = self.lock();
        if !state.abandoned.contains(&tag) {
            state.abandoned.push_back(tag);
        }
        if state.abandoned.len() > ABANDONED_MAX {
            state.abandoned.pop_front();
        }
        let kept: HashSet<_> = kept.iter().filter_map(|name| LeaseName::parse(name)).collect();
        let unseen = |(name, lent): &(&LeaseName, &HeldLease)| lent.tag == tag && !kept.contains(name);
        let mine: Vec<_> = state.lent.iter().filter(unseen).map(|(name, _)| *name).collect();
        for name in mine {
            if let Some(lent) = state.lent.remove(&name) {
                state.make_idle(lent.lease);
            }
        }
    }

    pub(super) fn take_back(&self, name: LeaseName, keeps: bool) {
        let mut state = self.lock();
        let Some(HeldLease { lease, .. }) = state.lent.remove(&name) else { return };
        if keeps && !lease.is_unseen() {
            return state.make_idle(lease);
        }
        lease.set_lent(false);
        // The lease is dropped outside the lock, because unmapping may take long.
        drop(state);
        drop(lease);
    }
}
