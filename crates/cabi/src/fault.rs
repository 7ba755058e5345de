//! How is the failure of a backend's call reported?

use std::fmt;
use std::sync::Arc;

use nerite_request::{Code, Status};

use crate::crash::{name_no_backend, running, running_backend};

/// Why a call failed.
#[derive(Debug)]
pub struct Fault {
    status: Status,
    /// Whether the backend broke a rule of the interface, which its author should know.
    is_misuse: bool,
    owner: Option<Arc<str>>,
}

impl Fault {
    /// A fault of a backend that broke a rule of the interface.
    pub fn misuse(text: impl Into<String>) -> Fault {
        Fault { status: Status::new(Code::InvalidArg, text), is_misuse: true, owner: None }
    }

    /// The same fault, with the name of the backend.
    pub fn of(self, owner: &Arc<str>) -> Fault {
        Fault { owner: Some(Arc::clone(owner)), ..self }
    }

    /// The error for the caller. Misuse is also logged.
    pub fn into_status(self, call: &str) -> Status {
        if self.is_misuse {
            log::error!("{}: {call}: {}", self.owner.or_else(running_backend).map_or_else(unknown, shown), self.status);
        }
        self.status
    }
}

impl From<Status> for Fault {
    fn from(status: Status) -> Fault {
        Fault { status, is_misuse: false, owner: None }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.status.fmt(f)
    }
}

/// Ends the process if an exception of C++ leaves a backend's function. Rust cannot catch it, and the state of the unwound code is unknown.
struct Thrown<'a>(&'a Arc<str>);

impl Drop for Thrown<'_> {
    #[expect(
        clippy::disallowed_methods,
        reason = "Rust ends the process anyway when it catches what is no panic; here the log says why"
    )]
    fn drop(&mut self) {
        // A panic of the server's own code is caught further out.
        if std::thread::panicking() {
            return;
        }
        log::error!(
            "backend '{}': an exception left one of its functions, which the interface forbids, so the process ends; run the backend in a process of its own \
             (--backend-config={},isolated=true), where it costs only its own requests",
            self.0,
            self.0
        );
        log::logger().flush();
        name_no_backend();
        std::process::abort();
    }
}

/// Runs code of a backend. Faults of its calls are reported with its name.
pub fn within<T>(owner: &Arc<str>, work: impl FnOnce() -> T) -> T {
    running(owner, || {
        let thrown = Thrown(owner);
        let done = work();
        std::mem::forget(thrown);
        done
    })
}

/// The backend whose code runs on this thread, for errors. A text in place of the name if it is not known.
pub fn running_owner() -> Arc<str> {
    running_backend().unwrap_or_else(|| Arc::from("(on a thread of its own)"))
}

fn shown(owner: Arc<str>) -> String {
    format!("backend '{owner}'")
}

fn unknown() -> String {
    "a compiled backend, on a thread of its own".to_owned()
}
