//! Which Python would run models here, and can it do so?

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::search::{SearchEnvironment, is_program};
use super::{Environments, Interpreter, NoPython, RunBounds};

/// A Python that can run models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonFound {
    /// The program.
    pub program: PathBuf,
    /// How it was found, as the end of a sentence.
    pub origin: String,
    /// Its version.
    pub python: String,
    /// Its numpy's version.
    pub numpy: String,
}

/// Whether the interpreter that `--backend-config=python,interpreter` names is a program. Nothing is started.
pub fn check_interpreter(interpreter: &Path) -> Result<(), NoPython> {
    let (program, _) = SearchEnvironment::of_process().find(Some(interpreter))?;
    if is_program(&program) {
        return Ok(());
    }
    Err(NoPython {
        found: format!("'{}' is no program that can be started", program.display()),
        cure: "name a Python 3.9 or newer with numpy".to_owned(),
    })
}

/// Finds the Python for models and starts it, for at most this time, to query its versions. `interpreter` is the value of
/// `--backend-config=python,interpreter`, and `environment` that of a model's `EXECUTION_ENV_PATH`.
pub fn find_python(
    interpreter: Option<&Path>,
    environment: Option<&str>,
    at_most: Duration,
) -> Result<PythonFound, NoPython> {
    let environments = Environments::default();
    let chosen =
        Interpreter::choose(&environments, environment, Path::new("."), interpreter, RunBounds::within(at_most), None)?;
    let answer = chosen.probe(at_most).map_err(|fault| chosen.accuse(&fault))?;
    let (program, origin) = (chosen.program, chosen.origin.to_string());
    Ok(PythonFound { program, origin, python: answer.python, numpy: answer.numpy })
}
