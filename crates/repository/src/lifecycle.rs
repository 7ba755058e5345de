//! In which state is each version of each model, and what comes next?
//!
//! ```text
//!              load_requested         loaded: all           unload_requested,
//!                                     versions well         or replaced                 drained
//!   (unknown) ──────────────► Loading ──────────────► Ready ───────────────► Unloading ─────────► Unloaded
//!                                │  loaded: one failed                           ▲
//!                                ├──────► Failed (the failed ones)               │
//!                                └───────────────────────────────────────────────┘ (those that loaded well)
//! ```
//!
//! A version that is ready while its successor loads stays ready: the successor is known to its operation only, and takes the
//! place when all versions of the operation are there. Each function is one event; what it returns is what the driver must do.

mod load;
mod look;
mod unload;

use std::collections::BTreeMap;
use std::sync::Arc;

use nerite_request::Status;

use crate::phrase;
use crate::store::Fingerprint;

/// The number of an operation on the models; later ones are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Operation(u64);

/// One version of a model as one operation loaded it. A reloaded version is another generation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation {
    /// The model's name.
    pub model: Arc<str>,
    /// The version.
    pub version: i64,
    /// The operation that loaded it.
    pub operation: Operation,
}

/// Where a version stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Being loaded, nothing of it served yet.
    Loading,
    /// Taking requests.
    Ready,
    /// Taking no requests; those in flight are being answered.
    Unloading,
    /// Gone because it was asked to go, or because another version of its operation failed.
    Unloaded,
    /// It could not be loaded, for this reason.
    Failed(String),
}

impl State {
    /// The word and the reason that the index prints.
    pub fn words(&self) -> (&'static str, &str) {
        match self {
            State::Loading => ("LOADING", ""),
            State::Ready => ("READY", ""),
            State::Unloading => ("UNLOADING", ""),
            State::Unloaded => ("UNAVAILABLE", phrase::UNLOADED),
            State::Failed(reason) => ("UNAVAILABLE", reason),
        }
    }
}

/// What a request to load comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadStep {
    /// All is served as asked for: the answer is yes, and nothing is to be loaded.
    Settled {
        /// Generations of versions that the directory has no more, to be retired as in a [`LoadOutcome`]. Mostly none.
        retire: Vec<Generation>,
    },
    /// These versions are to be loaded.
    Load(LoadPlan),
}

/// The versions that one operation is to load. [`Lifecycle::loaded`] waits for each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadPlan {
    /// The model's name.
    pub model: Arc<str>,
    /// The operation's number, to be given back with each result.
    pub operation: Operation,
    /// The versions to load, ascending, at least one. What is served stays until the [`LoadOutcome`].
    pub versions: Vec<i64>,
}

/// What the end of a load operation brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadOutcome {
    /// What the client that asked is told.
    pub answer: Result<(), Status>,
    /// Generations that take requests from now on, each in place of an older generation of its version.
    pub publish: Vec<Generation>,
    /// Generations that take no requests any more, served before or loaded in vain. [`Lifecycle::drained`] waits for each.
    pub retire: Vec<Generation>,
}

/// The models that were ever asked for, and the operations under way.
#[derive(Clone, Debug, Default)]
pub struct Lifecycle {
    models: BTreeMap<Arc<str>, Known>,
    running: BTreeMap<Operation, Running>,
    last: Operation,
}

/// A model that was asked for at least once.
#[derive(Clone, Debug, Default)]
struct Known {
    versions: BTreeMap<i64, Record>,
    /// What the last successful load was made from; `None` once unloaded, or if a request brought it.
    origin: Option<Fingerprint>,
    /// Loaded by name, and not only as a part of an ensemble.
    explicit: bool,
    /// The models it is made of.
    needs: Vec<String>,
    /// The last operation on it.
    latest: Operation,
}

/// What the index knows of a version.
#[derive(Clone, Debug)]
struct Record {
    state: State,
    /// The operation whose generation this is.
    operation: Operation,
}

/// A load operation that has not ended.
#[derive(Clone, Debug)]
struct Running {
    model: Arc<str>,
    /// Each version to load, and how it went once that is known.
    results: BTreeMap<i64, Option<Result<(), String>>>,
    /// Versions that are served already just as this operation wants them.
    keep: Vec<i64>,
    origin: Option<Fingerprint>,
    needs: Vec<String>,
}

impl Known {
    /// The versions that take requests, ascending.
    fn ready(&self) -> impl DoubleEndedIterator<Item = (i64, Operation)> {
        let ready = self.versions.iter().filter(|(_, record)| record.state == State::Ready);
        ready.map(|(&version, record)| (version, record.operation))
    }

    fn is_ready(&self, version: i64) -> bool {
        self.versions.get(&version).is_some_and(|record| record.state == State::Ready)
    }
}

impl Lifecycle {
    /// A server that knows no model yet.
    pub fn new() -> Lifecycle {
        Lifecycle::default()
    }

    fn next_operation(&mut self) -> Operation {
        self.last = Operation(self.last.0 + 1);
        self.last
    }
}

#[cfg(test)]
mod tests;
