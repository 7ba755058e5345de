//! Where do accounts come from, and what do all of them hold?

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::account::Account;
use crate::book::Shared;
use crate::marks::{Limits, ShedReason};

/// The budgets of one server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Budgets(pub(crate) Arc<Shared>);

/// The numbers at one moment, for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes that clients make the server hold, but for `leaving`.
    pub used: u64,
    /// Bytes that connections hold which are being ended.
    pub leaving: u64,
    /// Bytes that they may.
    pub max: u64,
    /// Connections that were ended, by reason.
    pub shed: Vec<(&'static str, u64)>,
}

impl Budgets {
    /// Budgets with these limits.
    pub fn new(limits: Limits) -> Budgets {
        Budgets(Arc::new(Shared::new(limits)))
    }

    /// An account for a new connection of the peer called `peer`.
    pub fn open(&self, peer: &str) -> Account {
        Account::new(self.0.open(peer))
    }

    /// The numbers now. Looks at each open account.
    pub fn counts(&self) -> Counts {
        let books = self.0.books();
        let held =
            |is_leaving| books.iter().filter(|book| book.is_leaving() == is_leaving).map(|book| book.held()).sum();
        let shed = ShedReason::ALL.iter().zip(&self.0.shed);
        Counts {
            used: held(false),
            leaving: held(true),
            max: self.0.all.marks.high,
            shed: shed.map(|(reason, count)| (reason.name(), count.load(Ordering::Relaxed))).collect(),
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
    /// An account in budgets of its own without limits.
    pub fn unlimited() -> Account {
        Budgets::default().open("")
    }
}
