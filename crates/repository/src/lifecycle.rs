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
//! A ready ensemble that no longer fits its parts becomes `Misfit`. A load makes it `Ready` again, and an unload makes it `Unloaded`. An unload also makes
//! a failed version `Unloaded`.
//!
//! A version stays ready while its successor loads. Only the operation knows the successor, which replaces the version when all versions of the
//! operation are loaded. Each function is one event, and returns what the driver must do.

mod load;
mod look;
mod unload;

use std::collections::BTreeMap;
use std::sync::Arc;

use nerite_request::Status;

use crate::phrase;
use crate::store::Fingerprint;

/// The number of an operation on the models. Later operations have greater numbers.
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

/// The state of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Being loaded, and not served yet.
    Loading,
    /// Taking requests.
    Ready,
    /// Taking no requests. Those in flight are being answered.
    Unloading,
    /// Unloaded on request, or because another version of its operation failed.
    Unloaded,
    /// Could not be loaded, for this reason.
    Failed(String),
    /// A version of an ensemble that was loaded and takes no requests, because it does not fit the models it is made of any more. The text is the
    /// reason.
    Misfit(String),
}

impl State {
    /// The state's name and the reason, as the index prints them.
    pub fn words(&self) -> (&'static str, &str) {
        match self {
            State::Loading => ("LOADING", ""),
            State::Ready => ("READY", ""),
            State::Unloading => ("UNLOADING", ""),
            State::Unloaded => ("UNAVAILABLE", phrase::UNLOADED),
            State::Failed(reason) | State::Misfit(reason) => ("UNAVAILABLE", reason),
        }
    }
}

/// The result of a load request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadStep {
    /// Everything is served already. The answer is success, and nothing has to be loaded.
    Settled {
        /// Generations of versions that the directory no longer has, to be retired as in a [`LoadOutcome`]. Usually none.
        retire: Vec<Generation>,
        /// Generations that continue with other instances: see [`Lifecycle::resized`]. Usually none.
        resize: Vec<Generation>,
    },
    /// These versions have to be loaded.
    Load(LoadPlan),
}

/// The versions that one operation loads. [`Lifecycle::loaded`] must be called for each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadPlan {
    /// The model's name.
    pub model: Arc<str>,
    /// The operation's number, to be passed with each result.
    pub operation: Operation,
    /// The versions to load, ascending, at least one. Served versions stay until the [`LoadOutcome`].
    pub versions: Vec<i64>,
    /// Generations of other versions that continue with other instances, once these are loaded.
    pub resize: Vec<Generation>,
}

/// The result of a finished load operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadOutcome {
    /// The answer to the client.
    pub answer: Result<(), Status>,
    /// Generations that take requests from now on. Each replaces an older generation of its version.
    pub publish: Vec<Generation>,
    /// Generations that take no more requests: those served before, and those loaded in vain. [`Lifecycle::drained`] must be called for each.
    pub retire: Vec<Generation>,
}

/// The versions that an unload takes out of service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Withdrawn {
    /// The models that are unloaded, including those that took no requests. A model may be there twice.
    pub models: Vec<Arc<str>>,
    /// The ensembles that are unloaded only because a model that they are made of is. A load of that model brings them back. An ensemble may be there
    /// twice.
    pub users: Vec<Arc<str>>,
    /// Generations that take no requests from now on. [`Lifecycle::drained`] must be called for each.
    pub retire: Vec<Generation>,
}

/// The models that were ever requested, and the unfinished operations.
#[derive(Clone, Debug, Default)]
pub struct Lifecycle {
    models: BTreeMap<Arc<str>, Known>,
    /// Why the last load of each of these models failed. A model whose directory cannot be read is only here.
    failures: BTreeMap<Arc<str>, String>,
    running: BTreeMap<Operation, Running>,
    last: Operation,
}

/// A model version that should be up and is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The model.
    pub model: Arc<str>,
    /// The version. `None` if the model has no version.
    pub version: Option<i64>,
    /// Why it is not up, in one line.
    pub reason: String,
}

/// A model that was requested at least once.
#[derive(Clone, Debug, Default)]
struct Known {
    versions: BTreeMap<i64, Record>,
    /// The fingerprint of the last successful load. `None` after an unload, or if the files came with a request.
    origin: Option<Fingerprint>,
    /// Whether it was loaded by name, and not only as a part of an ensemble.
    explicit: bool,
    /// The models it is made of.
    needs: Vec<String>,
    /// The last operation on it.
    latest: Operation,
}

/// A version as the index shows it.
#[derive(Clone, Debug)]
struct Record {
    state: State,
    /// The operation that loads or has loaded the generation.
    operation: Operation,
}

impl Record {
    /// Takes the version out of service on purpose. Returns whether it took requests, so that its generation has to be retired.
    fn withdraw(&mut self) -> bool {
        match self.state {
            State::Ready => {
                self.state = State::Unloading;
                true
            }
            // Nobody wants the version any more, so it is not missing.
            State::Misfit(_) | State::Failed(_) => {
                self.state = State::Unloaded;
                false
            }
            State::Loading | State::Unloading | State::Unloaded => false,
        }
    }
}

/// A load operation that has not ended.
#[derive(Clone, Debug)]
struct Running {
    model: Arc<str>,
    /// Each version to load, and its result once that is known.
    results: BTreeMap<i64, Option<Result<(), String>>>,
    /// Versions that are served already with the same files.
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

    /// Why the first version that failed takes no requests, in one line.
    fn failure(&self) -> Option<&str> {
        self.versions.values().find_map(|record| match &record.state {
            State::Failed(reason) | State::Misfit(reason) => Some(phrase::one_line(reason)),
            State::Loading | State::Ready | State::Unloading | State::Unloaded => None,
        })
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
