//! What may a model's process do, and how is that enforced?
//!
//! ```text
//!   server                                             child, one process all the way
//!   --backend-config=python,sandbox=on ─► Sandbox ─► nerite confine <policy> -- python3 … ─► exec ─► python3: the model
//!   the model's parameters SANDBOX_…        │          limits, Landlock, capabilities, seccomp
//!                                           └ check: the same without a program, before the model loads
//! ```
//!
//! The server starts its own program again, with the policy in its arguments. That process has one thread. It gives up what the policy does not
//! grant, and then becomes the model's program by `exec`, which keeps its number, its descriptors and all restrictions. So no code runs between
//! `fork` and `exec` in the server's copy.
//!
//! ```
//! use std::collections::BTreeMap;
//!
//! use nerite_sandbox::Sandbox;
//!
//! // Nothing is confined unless the operator or the model's author asks for it.
//! let none = Sandbox::read("python", &BTreeMap::new(), "m", |_| None, &[])?;
//! assert!(none.is_none());
//! let typo = BTreeMap::from([("sandbox".to_owned(), "yes please".to_owned())]);
//! let refusal = Sandbox::read("python", &typo, "m", |_| None, &[]).unwrap_err();
//! assert!(refusal.message.ends_with("it is 'on', 'best-effort' or 'off'"));
//! # Ok::<(), nerite_request::Status>(())
//! ```
#![forbid(unsafe_code)]

mod calls;
mod capabilities;
mod confine;
mod directory;
mod files;
mod groups;
mod limits;
mod policy;
mod processes;
mod program;
mod removal;
mod sandbox;
mod settings;
mod words;

pub use confine::main;
pub use directory::LockedDirectory;
pub use program::{COMMAND, set_program};
pub use sandbox::{Sandbox, end, probe};
pub use settings::{AllowedPlace, KEYS, SETTING, allowed_places};
