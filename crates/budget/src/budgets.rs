//! How are accounts opened, and how much do all of them hold?

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::account::Account;
use crate::ledger::Shared;
use crate::marks::{Limits, ShedReason};
use crate::retained::PeerAccount;

/// The budgets of one server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Budgets(pub(crate) Arc<Shared>);

/// The numbers at one moment, for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes that clients make the server hold, without `leaving`.
    pub used: u64,
    /// Bytes held by connections that are being ended.
    pub leaving: u64,
    /// Bytes that all clients may make the server hold.
    pub max: u64,
    /// Connections that were ended, by reason.
    pub shed: Vec<(&'static str, u64)>,
    /// Messages, and things to keep, that were refused because they exceed a budget.
    pub refused: u64,
}

impl Budgets {
    /// Budgets with these limits.
    pub fn new(limits: Limits) -> Budgets {
        Budgets(Arc::new(Shared::new(limits)))
    }

    /// Opens an account for a new connection of the peer with that name.
    pub fn open(&self, peer: &str) -> Account {
        Account::new(self.0.open(peer))
    }

    /// The account of the peer with that name, for what it keeps beyond its connections.
    pub fn of_peer(&self, peer: &str) -> PeerAccount {
        PeerAccount::new(self.0.open_of_peer(peer))
    }

    /// The numbers now. Visits each open account.
    pub fn counts(&self) -> Counts {
        let ledgers = self.0.ledgers();
        let held = |is_ending| {
            ledgers.iter().filter(|ledger| ledger.is_ending() == is_ending).map(|ledger| ledger.held()).sum()
        };
        let shed = ShedReason::ALL.iter().zip(&self.0.shed_counts);
        Counts {
            used: held(false),
            leaving: held(true),
            max: self.0.all.marks.high,
            shed: shed.map(|(reason, count)| (reason.name(), count.load(Ordering::Relaxed))).collect(),
            refused: self.0.refused.load(Ordering::Relaxed),
        }
    }
}

impl Default for Budgets {
    /// Without limits.
    fn default() -> Budgets {
        Budgets::new(Limits::NONE)
    }
}

impl Account {
    /// An account without limits, in budgets of its own.
    pub fn unlimited() -> Account {
        Budgets::default().open("")
    }
}
