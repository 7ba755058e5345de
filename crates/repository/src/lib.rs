//! Which models should be up?
//!
//! ```text
//!   directories ──► Store ──► ModelSource ──► (a runtime loads each version) ──► Lifecycle
//!                   reads     config, versions,                                 decides what to
//!                   files     labels, fingerprint                               publish and retire
//! ```
//!
//! [`Store`] only reads directories. [`Lifecycle`] only decides: it has no thread, no clock and no log. The engine drives both:
//!
//! 1. [`Store::read`] reads a model. An error here is a [`PollError`]: its text is for the log, its [`status`](PollError::status) for the client.
//!    Loaded versions stay.
//! 2. [`Lifecycle::load_requested`] with the source's [`facts`](ModelSource::facts) says which versions to load.
//! 3. The engine loads each through its runtime and calls [`Lifecycle::loaded`]. The last call returns the [`LoadOutcome`]: generations to publish,
//!    generations to retire, and the client's answer.
//! 4. When the last reference to a retired [`Generation`] is dropped, the engine calls [`Lifecycle::drained`].
//!
//! ```
//! use std::collections::BTreeMap;
//!
//! use nerite_repository::load_order;
//!
//! let needs = BTreeMap::from([
//!     ("ensemble".to_owned(), vec!["embed".to_owned(), "rank".to_owned()]),
//!     ("embed".to_owned(), vec![]),
//!     ("rank".to_owned(), vec![]),
//! ]);
//! assert_eq!(load_order(&needs).waves, [vec!["embed", "rank"], vec!["ensemble"]]);
//! ```
#![forbid(unsafe_code)]

mod control;
mod lifecycle;
pub mod limits;
mod nesting;
mod order;
pub mod phrase;
mod residence;
mod store;
mod watch;

pub use control::{ControlMode, Startup, startup};
pub use lifecycle::{Generation, Lifecycle, LoadOutcome, LoadPlan, LoadStep, Missing, Operation, State, Withdrawn};
pub use order::{Order, load_order};
pub use residence::{Residence, Vacancy};
pub use store::{
    Facts, FileStates, Fingerprint, Labels, Listing, ModelDir, ModelSource, PollError, Store, StoreError, StoreOptions,
    Warning, bucket_cure, check_name, labels_bytes,
};
pub use watch::{Changed, Coverage, RepositoryWatch};
