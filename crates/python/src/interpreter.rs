//! Which Python runs a model?
//!
//! ```text
//!   EXECUTION_ENV_PATH ─► Environments: a directory, or an archive unpacked once ─► activation ─┐
//!   interpreter=…, VIRTUAL_ENV, PATH ─► search ────────────────────────────────────────────────┴─► Interpreter ─► process
//!                                                   why did it not answer? ◄───── probe ◄─────────────┘
//! ```
//!
//! Choosing starts no process, so a server without Python models has no cost. An interpreter is started for its versions only after it failed to run
//! a model, so that the error can say what to do.

mod activation;
mod archive;
mod bounded;
mod environments;
mod look;
mod no_python;
mod probe;
mod readable_paths;
mod search;

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use nerite_backend::Models;
use nerite_request::Status;
use nerite_sandbox::Sandbox;

pub(crate) use bounded::RunBounds;
pub(crate) use environments::Environments;
pub use look::{PythonFound, check_interpreter, find_python};
pub use no_python::NoPython;
use probe::{Fault, VERSION_MIN, version};
use search::SearchEnvironment;

/// Code that runs before the stub in an environment whose libraries were put first in `LD_LIBRARY_PATH`. It restores the variable for programs that
/// the model starts, which need the system's libraries.
const PUT_LIBRARIES_BACK: &str =
    "import os; os.environ['LD_LIBRARY_PATH'] = os.environ['LD_LIBRARY_PATH'].partition(':')[2]\n";

/// A Python, and how it is started.
#[derive(Clone, Debug)]
pub(crate) struct Interpreter {
    program: PathBuf,
    origin: Origin,
    /// The variables of its environment's activation. Empty for the user's own interpreter.
    variables: Vec<(&'static str, Option<OsString>)>,
    /// Keeps the files of an unpacked environment while the interpreter may be started.
    unpacked: Option<Arc<environments::Unpacked>>,
    /// The sandbox of its processes, if they have one.
    sandbox: Option<Arc<Sandbox>>,
}

/// How the interpreter was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The model's parameter, with its value.
    Environment(String),
    /// `--backend-config=python,interpreter=`.
    Setting,
    /// An activated virtual environment.
    VirtualEnv,
    /// `python3` on the PATH.
    Path,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Environment(named) => write!(f, "of EXECUTION_ENV_PATH '{named}'"),
            Origin::Setting => f.write_str("named by --backend-config=python,interpreter"),
            Origin::VirtualEnv => f.write_str("of the environment in VIRTUAL_ENV"),
            Origin::Path => f.write_str("python3 on the PATH"),
        }
    }
}

impl Interpreter {
    /// Chooses the interpreter for a model: that of its environment, else the operator's, else that of an activated environment, else the one on the
    /// PATH.
    pub(crate) fn choose(
        environments: &Environments,
        environment: Option<&str>,
        model_dir: &Path,
        setting: Option<&Path>,
        bounds: RunBounds<'_>,
        sandbox: Option<&Arc<Sandbox>>,
    ) -> Result<Interpreter, NoPython> {
        let search = SearchEnvironment::of_process();
        if let Some(named) = environment.filter(|named| !named.is_empty()) {
            return environments.interpreter(named, model_dir, &search, bounds, sandbox);
        }
        let (program, origin) = search.find(setting)?;
        Ok(Interpreter { program, origin, variables: Vec::new(), unpacked: None, sandbox: sandbox.map(Arc::clone) })
    }

    /// The command that starts it, without arguments.
    pub(crate) fn command(&self) -> Command {
        self.command_writing(None)
    }

    /// As [`Interpreter::command`], for a process that may also write in this directory, which the server made.
    fn command_writing(&self, own: Option<&Path>) -> Command {
        if let Some(sandbox) = &self.sandbox {
            let paths = readable_paths::of(&self.program, self.unpacked.is_some());
            return sandbox.command(self.program.as_os_str(), None, &self.variables, &paths, own);
        }
        let mut command = Command::new(&self.program);
        for (name, value) in &self.variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// Whether its processes run in a sandbox.
    pub(crate) fn is_confined(&self) -> bool {
        self.sandbox.is_some()
    }

    /// The models for a process of this interpreter. A sandbox restricts which of them it may load and unload.
    pub(crate) fn models(&self, models: &Models) -> Models {
        match &self.sandbox {
            Some(sandbox) => models.confined_to(sandbox.loadable_models()),
            None => models.clone(),
        }
    }

    /// Whether code that runs in it may start no other process.
    pub(crate) fn forbids_processes(&self) -> bool {
        self.sandbox.as_ref().is_some_and(|sandbox| sandbox.forbids_processes())
    }

    /// The code to run, with the code that must come before it in this environment.
    pub(crate) fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.variables.iter().any(|(name, _)| *name == "LD_LIBRARY_PATH") {
            return format!("{PUT_LIBRARIES_BACK}{text}").into();
        }
        text.into()
    }

    /// Why it ran no model, if the interpreter is the cause. Starts the interpreter to find out, for at most this time.
    pub(crate) fn blame(&self, at_most: Duration) -> Option<Status> {
        if at_most.is_zero() {
            return None;
        }
        self.probe(at_most).err().map(|fault| self.accuse(&fault).status())
    }

    /// The error of an interpreter that cannot be started.
    pub(crate) fn unstarted(&self, error: std::io::Error) -> Status {
        self.accuse(&Fault::Unstartable(error)).status()
    }

    /// Refuses a Python that ran the stub, but is older than the oldest supported version.
    pub(crate) fn check_version(&self, python: &str) -> Result<(), Status> {
        match version(python) {
            Some(found) if found < VERSION_MIN => Err(self.accuse(&Fault::Old(python.to_owned())).status()),
            _ => Ok(()),
        }
    }

    fn probe(&self, at_most: Duration) -> Result<probe::Answer, Fault> {
        probe::query(self.command(), at_most)
    }

    fn accuse(&self, fault: &Fault) -> NoPython {
        NoPython { found: format!("{self} {fault}"), cure: fault.cure(&self.program, &self.origin) }
    }
}

impl fmt::Display for Interpreter {
    /// Its form in errors.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let confined = if self.sandbox.is_some() { ", in a sandbox" } else { "" };
        write!(f, "'{}' ({}{confined})", self.program.display(), self.origin)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn made(variables: Vec<(&'static str, Option<OsString>)>) -> Interpreter {
        Interpreter {
            program: "/p/bin/python3".into(),
            origin: Origin::Setting,
            variables,
            unpacked: None,
            sandbox: None,
        }
    }

    #[track_caller]
    fn check(python: &str, refused: Option<&str>) {
        let found = made(Vec::new()).check_version(python).map_err(|status| status.message).err();
        assert_eq!(found.as_deref(), refused, "{python}");
    }

    #[test]
    fn a_python_older_than_promised_is_refused_by_name() {
        check("3.9.0", None);
        check("3.14.0", None);
        check("unknown", None);
        check(
            "3.8.18",
            Some(
                "no Python to run the model: '/p/bin/python3' (named by --backend-config=python,interpreter) is Python 3.8.18, and \
                 models need 3.9 or newer; name a newer one with --backend-config=python,interpreter=<path>",
            ),
        );
        let environment = Interpreter { origin: Origin::Environment("env.tar.gz".into()), ..made(Vec::new()) };
        let message = environment.check_version("2.7.18").unwrap_err().message;
        assert!(message.ends_with("; make the environment with a newer one"), "{message}");
    }

    #[test]
    fn libraries_that_were_put_first_are_put_back_before_the_model_runs() {
        assert_eq!(made(Vec::new()).text("run()"), "run()");
        let conda = made(vec![("LD_LIBRARY_PATH", Some("/e/lib:/usr/x".into()))]);
        assert_eq!(conda.text("run()"), format!("{PUT_LIBRARIES_BACK}run()"));
        let Ok((python, _)) = SearchEnvironment::of_process().find(None) else { return };
        for (given, left) in [("/e/lib:/usr/x:/y", "/usr/x:/y"), ("/e/lib", "")] {
            let text = conda.text("import os; print(os.environ['LD_LIBRARY_PATH'], end='')");
            let output = Command::new(&python).args(["-c", &text]).env("LD_LIBRARY_PATH", given).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), left);
        }
    }
}
