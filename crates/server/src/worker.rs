//! What does this program do as the process of an isolated instance?

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;

use nerite_backend::Runtime;
use nerite_isolated::{Isolated, Starter};
use tokio::signal::unix::{SignalKind, signal};

use crate::panics;

/// The command by which a server starts this program again: `instance-worker <instance> <library of ONNX Runtime, or 'none'>`. The
/// instance's name is for whoever looks at processes.
pub const COMMAND: &str = "instance-worker";

/// The embedded engine's name instead of a library.
const EMBEDDED: &str = "none";

/// The ONNX runtime with this library, or the embedded one; models may ask for processes of their own.
pub fn isolating(inner: Arc<dyn Runtime>, library: Option<&Path>) -> Isolated {
    let library = library.map_or_else(|| PathBuf::from(EMBEDDED), Path::to_path_buf);
    let start: Starter = Arc::new(move |instance| {
        // The file that runs, even where another has taken its place on disk.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("nerite").args([COMMAND, instance]).arg(&library);
        command
    });
    Isolated::over(inner, start)
}

/// `nerite instance-worker`.
pub fn main(words: &[String]) -> ExitCode {
    let [_, library] = words else {
        eprintln!("nerite {COMMAND}: servers start it themselves, for models whose parameter 'isolated' is true");
        return ExitCode::from(2);
    };
    // A service manager signals all processes of the service; when an instance ends is its server's decision.
    let signals = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let _handlers = signals.as_ref().ok().map(|runtime| {
        let _entered = runtime.enter();
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    });
    panics::install();
    nerite_isolated::work(|| open(library))
}

fn open(library: &str) -> Result<Arc<dyn Runtime>, String> {
    if library == EMBEDDED {
        return Ok(Arc::new(nerite_onnx::Embedded));
    }
    let runtime = nerite_ort::OnnxRuntime::open(Path::new(library)).map_err(|error| error.to_string())?;
    Ok(Arc::new(runtime))
}
