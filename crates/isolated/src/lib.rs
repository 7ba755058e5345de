//! How does an engine of the server run a model in a process of its own?
//!
//! ```text
//!             server                                             child: this program again, `nerite instance-worker`
//!   Isolated ──load──► IsolatedModel ──instance──► ProcessInstance ── channel ──► worker ──► the engine's own Runtime
//!     which models?      ProcessLauncher:               (crate `process`)              inputs: Buffers over the client's own region
//!                        how a child starts                                         outputs: Slots over the client's own region
//! ```
//!
//! [`Isolated`] wraps a [`nerite_backend::Runtime`]. A model runs in children, one for each instance, if its parameter `isolated` is true, or if the
//! operator's setting of that name is true for its backend. If neither is set, a model with a sandbox is isolated, and so is one for which its
//! runtime reports a danger. Other models run in the server's process. The child opens the same engine, loads the model, and answers the server's
//! commands ([`work`]). A crash of the engine fails only the requests that the child had. `docs/isolated.md` says what an operator should know.
//!
//! ```
//! use nerite_isolated::{SETTING, check_setting};
//!
//! assert_eq!(SETTING, "isolated");
//! assert_eq!(check_setting("true"), Ok(())); // all models of the backend run in processes of their own
//! assert!(check_setting("maybe").is_err());
//! ```
#![forbid(unsafe_code)]

mod context;
mod limits;
mod model;
mod model_supplied;
mod runtime;
mod worker;

pub use model::Starter;
pub use model_supplied::IsolatedLibraries;
pub use runtime::{Isolated, SETTING, check_setting};
pub use worker::work;
