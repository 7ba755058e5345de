//! How often does a request take a lock?
//!
//! [`Mutex`] and [`RwLock`] are those of the standard library. A build with debug assertions counts how often each line of code takes
//! one, so that a test can say how many locks a request costs. A release build has no counters: the types are the standard library's
//! own. Locks inside libraries, such as those of tokio, are not counted.
//!
//! ```
//! use nerite_locks::{Mutex, counts};
//!
//! let value = Mutex::new(1);
//! let before: u64 = counts().iter().map(|taken| taken.times).sum();
//! drop(value.lock());
//! let after: u64 = counts().iter().map(|taken| taken.times).sum();
//! // `cargo test` builds with debug assertions.
//! assert!(!cfg!(debug_assertions) || after > before);
//! ```

#![forbid(unsafe_code)]

#[cfg(debug_assertions)]
mod counted;
#[cfg(debug_assertions)]
mod counter;

#[cfg(debug_assertions)]
pub use counted::{Mutex, RwLock};
#[cfg(debug_assertions)]
pub use counter::{counts, exempt_this_thread};
#[cfg(not(debug_assertions))]
pub use std::sync::{Mutex, RwLock};

/// How often one line of code took a lock since the process began.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// The line that took it.
    pub place: &'static std::panic::Location<'static>,
    /// How often.
    pub times: u64,
}

/// Always empty: a build without debug assertions does not count.
#[cfg(not(debug_assertions))]
pub fn counts() -> Vec<Taken> {
    Vec::new()
}

/// Has no effect: a build without debug assertions does not count.
#[cfg(not(debug_assertions))]
pub fn exempt_this_thread() {}
