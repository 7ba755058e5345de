//! Which Python would run models here, and is it fit for it?

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Environments, Interpreter, NoPython};

/// A Python that can run models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonFound {
    /// The program.
    pub program: PathBuf,
    /// Who named it, as the end of a sentence about it.
    pub origin: String,
    /// Its version.
    pub python: String,
    /// Its numpy's version.
    pub numpy: String,
}

/// Finds the Python that models would get (`interpreter`: what `--backend-config=python,interpreter` would say; `environment`: a
/// model's `EXECUTION_ENV_PATH`) and starts it, for at most so long, to ask for its versions.
pub fn find_python(
    interpreter: Option<&Path>,
    environment: Option<&str>,
    at_most: Duration,
) -> Result<PythonFound, NoPython> {
    let environments = Environments::default();
    let chosen = Interpreter::choose(&environments, environment, Path::new("."), interpreter, at_most)?;
    let answer = chosen.probe(at_most).map_err(|fault| chosen.accuse(&fault))?;
    let (program, origin) = (chosen.program, chosen.origin.to_string());
    Ok(PythonFound { program, origin, python: answer.python, numpy: answer.numpy })
}
