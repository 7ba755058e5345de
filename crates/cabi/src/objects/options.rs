//! Which options does a program set for the server that it is about to make?
//!
//! Options are stored as command-line flags: each is checked as, and means the same as, the flag of that name.

use std::sync::{MutexGuard, PoisonError};

use nerite_locks::Mutex;

use super::object;
use crate::fault::Fault;
use crate::limits::OPTIONS_MAX;

/// `TRITONSERVER_ServerOptions`.
pub struct ServerOptions(Mutex<Given>);

object!(ServerOptions, 24, "server options object");

struct Given {
    flags: Vec<String>,
    /// Whether configurations are used as they are. In Triton this is the default for programs, but not for operators.
    is_strict: bool,
    control: Control,
    startup: Vec<String>,
}

/// `TRITONSERVER_ModelControlMode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Number 0.
    None,
    /// Number 1, which is Triton's default.
    Poll,
    /// Number 2.
    Explicit,
}

impl ServerOptions {
    /// The defaults.
    pub fn new() -> ServerOptions {
        let (flags, startup) = (Vec::new(), Vec::new());
        ServerOptions(Mutex::new(Given { flags, is_strict: true, control: Control::Poll, startup }))
    }

    /// Stores the flag of that name with this value. Some flags may be repeated. For the others the last value is used.
    pub fn set(&self, flag: &str, value: impl std::fmt::Display) -> Result<(), Fault> {
        let mut given = self.lock();
        check_count(given.flags.len())?;
        given.flags.push(format!("--{flag}={value}"));
        Ok(())
    }

    /// Sets whether configurations are used as they are.
    pub fn set_strict(&self, is_strict: bool) {
        self.lock().is_strict = is_strict;
    }

    /// Sets who decides which models are loaded.
    pub fn set_control(&self, control: Control) {
        self.lock().control = control;
    }

    /// Adds a model to load at start.
    pub fn add_startup(&self, model: String) -> Result<(), Fault> {
        let mut given = self.lock();
        check_count(given.startup.len())?;
        given.startup.push(model);
        Ok(())
    }

    /// All options, as command-line flags.
    pub fn flags(&self) -> Vec<String> {
        let given = self.lock();
        let mut flags = given.flags.clone();
        let (word, loads) = match given.control {
            Control::None => ("none", false),
            Control::Poll => ("poll", false),
            Control::Explicit => ("explicit", true),
        };
        flags.push(format!("--model-control-mode={word}"));
        // In the other modes all models are loaded, and Triton ignores these.
        flags.extend(given.startup.iter().filter(|_| loads).map(|model| format!("--load-model={model}")));
        if given.is_strict {
            flags.push("--disable-auto-complete-config".to_owned());
        }
        flags
    }

    fn lock(&self) -> MutexGuard<'_, Given> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check_count(present: usize) -> Result<(), Fault> {
    if present < OPTIONS_MAX {
        Ok(())
    } else {
        Err(Fault::misuse(format!("there are {present} options, the most there may be")))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn options_are_flags() {
        let options = ServerOptions::new();
        assert_eq!(options.flags(), ["--model-control-mode=poll", "--disable-auto-complete-config"]);
        options.set("id", "a b=c").unwrap();
        options.add_startup("m".to_owned()).unwrap();
        options.set_strict(false);
        assert_eq!(options.flags(), ["--id=a b=c", "--model-control-mode=poll"]);
        options.set_control(Control::Explicit);
        assert_eq!(options.flags(), ["--id=a b=c", "--model-control-mode=explicit", "--load-model=m"]);
    }

    #[test]
    fn options_are_bounded() {
        let options = ServerOptions::new();
        (0..OPTIONS_MAX).for_each(|at| options.set("model-repository", at).unwrap());
        assert!(options.set("id", "x").is_err());
        assert_eq!(options.flags().len(), OPTIONS_MAX + 2);
    }
}
