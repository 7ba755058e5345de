//! How does a model run in a terminal, without a server?
//!
//! The model's own interpreter runs `python/nerite/model/trial.py` in the foreground, so a debugger has the terminal.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use nerite_backend::InstanceSpec;
use nerite_config::{ModelConfig, to_json};
use serde_json::json;

use crate::interpreter::{Environments, Interpreter, NoPython, RunBounds};
use crate::model::{absolute, file_name, kind};
use crate::stub;

/// How long the unpacking of an environment may take.
const UNPACK_MAX: Duration = Duration::from_mins(10);

/// The program of the interpreter. The folder with its modules comes last in the path, so that it hides no module of the model. An interpreter that
/// is too old or has no numpy ends with [`UNFIT`].
const PROGRAM: &str = "\
import sys
if sys.version_info < (3, 9):
    sys.exit(113)
try:
    import numpy
except ImportError:
    sys.exit(113)
sys.path.append(sys.argv[1])
from nerite_model import trial
trial.run(sys.argv[2])
";

/// The exit status of an interpreter that cannot run models. Because a model may end with the same status, the interpreter is then probed for the
/// reason.
const UNFIT: i32 = 113;

/// How long the probe of the interpreter may take.
const ASKED_MAX: Duration = Duration::from_mins(1);

/// The modules that take the place of Triton's, for interpreters that the model starts.
const ALIASES: [&str; 2] = ["triton_python_backend_utils", "c_python_backend_utils"];

/// A model of the Python backend, and how it is to be run.
#[derive(Clone, Copy, Debug)]
pub struct TerminalRun<'a> {
    /// The model's name.
    pub model: &'a str,
    /// The version to run.
    pub version: i64,
    /// The model's directory.
    pub model_dir: &'a Path,
    /// The configuration, before the model completes it.
    pub config: &'a ModelConfig,
    /// The interpreter, as `--backend-config=python,interpreter` names one.
    pub interpreter: Option<&'a Path>,
    /// Values of inputs by name: JSON, or `@` and the path of a `.npy` file. The others get samples.
    pub inputs: &'a [(String, String)],
    /// The first dimension of samples, where the model batches.
    pub batch: u32,
    /// How often `execute` is called.
    pub runs: u32,
    /// Whether Python's debugger stops at the first line of `execute`, and where the model raises.
    pub pdb: bool,
    /// Whether the time of `execute` is reported by function.
    pub profile: bool,
}

/// Why a model was not run.
#[derive(Debug, thiserror::Error)]
pub enum TerminalRunError {
    /// No Python can run it.
    #[error("no Python to run the model: {}{}{}", .0.found, if .0.cure.is_empty() { "" } else { "; " }, .0.cure)]
    NoPython(NoPython),
    /// The chosen Python cannot run it. The text has the reason and the cure.
    #[error("{0}")]
    Unfit(String),
    /// The files for the interpreter cannot be written.
    #[error("cannot write the modules for the interpreter: {0}")]
    Files(io::Error),
    /// The interpreter cannot be started.
    #[error("cannot start {interpreter}: {cause}")]
    Start {
        /// The interpreter and how it was found.
        interpreter: String,
        /// The system's error.
        cause: io::Error,
    },
}

/// Runs a model in this terminal, and waits for its end. What it prints goes to this program's own output. The status is 0 if all went well, 1 if the
/// model failed, and 2 if it cannot be run as requested.
pub fn run_in_terminal(run: &TerminalRun<'_>) -> Result<ExitStatus, TerminalRunError> {
    let environments = Environments::default();
    let environment = run.config.parameter("EXECUTION_ENV_PATH");
    let interpreter = Interpreter::choose(
        &environments,
        environment,
        run.model_dir,
        run.interpreter,
        RunBounds::within(UNPACK_MAX),
        None,
    )
    .map_err(TerminalRunError::NoPython)?;
    let modules = write_modules().map_err(TerminalRunError::Files)?;
    let mut command = interpreter.command();
    // The run is described in a file, because one argument of a program has 128 KiB at most.
    let run_file = modules.path().join("run.json");
    fs::write(&run_file, described(run)).map_err(TerminalRunError::Files)?;
    command.args(["-u", "-c", &interpreter.text(PROGRAM)]).arg(modules.path()).arg(run_file);
    let status =
        command.status().map_err(|cause| TerminalRunError::Start { interpreter: interpreter.to_string(), cause });
    let may_be_unfit = status.as_ref().is_ok_and(|status| status.code() == Some(UNFIT));
    let unfit = may_be_unfit.then(|| interpreter.blame(ASKED_MAX)).flatten();
    environments.end();
    match unfit {
        Some(unfit) => Err(TerminalRunError::Unfit(unfit.message)),
        None => status,
    }
}

/// A folder with the modules that run the model. It is removed when this is dropped.
fn write_modules() -> io::Result<tempfile::TempDir> {
    let folder = tempfile::Builder::new().prefix("nerite-model-run-").tempdir()?;
    let package = folder.path().join("nerite_model");
    fs::create_dir(&package)?;
    for (name, source) in stub::sources().chain([stub::TRIAL]) {
        let file = name.strip_prefix("nerite_model.").unwrap_or("__init__");
        fs::write(package.join(file).with_extension("py"), source)?;
    }
    for alias in ALIASES {
        let source = "from nerite_model.workers import name_as_tritons\nname_as_tritons()\n";
        fs::write(folder.path().join(alias).with_extension("py"), source)?;
    }
    Ok(folder)
}

/// The description of the run, in JSON, as `trial.run` reads it.
fn described(run: &TerminalRun<'_>) -> String {
    let (name, version) = (run.model, run.version.to_string());
    let model_dir = absolute(run.model_dir);
    let version_dir = absolute(&run.model_dir.join(&version));
    let instance = format!("{name}_0_0");
    let config = to_json(run.config);
    let args = json!({
        "model_config": config,
        "model_instance_device_id": "0",
        "model_instance_kind": kind(run.config, &InstanceSpec { name: instance.clone(), ..InstanceSpec::default() }),
        "model_instance_name": instance,
        "model_name": name,
        "model_repository": model_dir,
        "model_version": version,
    });
    // The configuration is JSON already. It could be invalid only because of a bug in the code that wrote it.
    let config: serde_json::Value = serde_json::from_str(&config).unwrap_or_default();
    json!({
        "model": {
            "name": name, "version": version, "file": file_name(run.config), "version_dir": version_dir, "model_dir": model_dir,
            "instance": instance,
        },
        "config": config,
        "args": args,
        "inputs": run.inputs.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
        "batch": run.batch,
        "runs": run.runs,
        "pdb": run.pdb,
        "profile": run.profile,
    })
    .to_string()
}
