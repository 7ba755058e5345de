//! What does a peer make the server keep beyond its connections?
//!
//! States of sequences, names of regions and the configurations of models outlive the request that made them, and often its connection. They are
//! charged to the peer. Ending a connection does not release them, so more than the peer's share is refused.

use std::sync::Arc;

use crate::ledger::Ledger;
use crate::marks::OverShare;

/// The account of one peer. A clone is the same account. It lives until its last charge is dropped.
#[derive(Clone, Debug)]
pub struct PeerAccount(Arc<Ledger>);

impl PeerAccount {
    pub(crate) fn new(ledger: Arc<Ledger>) -> PeerAccount {
        PeerAccount(ledger)
    }

    /// Charges `bytes` until the charge is dropped. Err: the peer or all peers would keep more than their share.
    pub fn charge(&self, bytes: usize) -> Result<PeerCharge, OverShare> {
        let mut charge = PeerCharge { account: self.clone(), bytes: 0 };
        charge.resize(bytes)?;
        Ok(charge)
    }

    /// Whether the other is the same account.
    pub fn is_same(&self, other: &PeerAccount) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Bytes charged now.
    pub fn retained(&self) -> u64 {
        self.0.held()
    }
}

/// Bytes charged to a peer while this lives.
#[derive(Debug)]
pub struct PeerCharge {
    account: PeerAccount,
    bytes: usize,
}

impl PeerCharge {
    /// Changes the charge to `bytes`. On an error it stays as it was.
    pub fn resize(&mut self, bytes: usize) -> Result<(), OverShare> {
        let ledger = &self.account.0;
        if bytes > self.bytes {
            ledger.try_retain((bytes - self.bytes) as u64)?;
        } else if bytes < self.bytes {
            ledger.release_retained((self.bytes - bytes) as u64);
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Bytes charged.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The account that is charged.
    pub fn account(&self) -> &PeerAccount {
        &self.account
    }
}

impl Drop for PeerCharge {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.account.0.release_retained(self.bytes as u64);
        }
    }
}
