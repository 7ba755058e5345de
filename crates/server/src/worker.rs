//! What does this program do as the process of an isolated instance?

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;

use nerite_backend::{MetricSource, Runtime};
use nerite_cabi::{CompiledBackend, ModelLibraries, Options};
use nerite_isolated::{Isolated, IsolatedLibraries, Starter};
use tokio::signal::unix::{SignalKind, signal};

use crate::file_limit::file_too_large;
use crate::{panics, place};

/// The command by which a server starts this program again: `instance-worker <instance> <library of ONNX Runtime, or 'none'>`, or
/// `instance-worker <instance> <library> <backend> <directory of backends> <whether configurations are completed>` for a compiled backend. The
/// instance's name is there for lists of processes.
pub const COMMAND: &str = "instance-worker";

/// Freed tensors that such a process keeps for its next run.
const POOL_BYTES_MAX: u64 = 64 << 20;

/// The embedded engine's name instead of a library.
const EMBEDDED: &str = "none";

/// The ONNX runtime with this library, or the embedded one. Models may request processes of their own.
pub fn isolating(inner: Arc<dyn Runtime>, library: Option<&Path>) -> Isolated {
    let library = library.map_or_else(|| PathBuf::from(EMBEDDED), Path::to_path_buf);
    over(inner, &library, Vec::new())
}

/// A compiled backend. Its library takes the place of an engine's name. Models may request processes of their own.
pub fn isolating_compiled(inner: Arc<dyn Runtime>, options: &Options) -> Isolated {
    let library = PathBuf::from(inner.engine());
    let completes = options.auto_complete.to_string();
    let words = vec![inner.name().into(), options.directory.clone().into_os_string(), completes.into()];
    over(inner, &library, words).compiled()
}

/// The same for the backends that models bring along.
pub fn isolating_libraries(options: Options) -> IsolatedLibraries {
    let found = Arc::new(ModelLibraries::new(options.clone()));
    IsolatedLibraries::over(found, Box::new(move |runtime| isolating_compiled(runtime, &options)))
}

/// Children get the library and `words` as arguments.
fn over(inner: Arc<dyn Runtime>, library: &Path, words: Vec<OsString>) -> Isolated {
    let named = library.to_path_buf();
    let start: Starter = Arc::new(move |instance| {
        let mut command = Command::new(place::program());
        command.arg0("nerite").args([COMMAND, instance]).arg(&named).args(&words);
        command
    });
    // The program itself, and the folder of the library, which may have further libraries.
    let folder = library.parent().filter(|folder| folder.is_absolute()).map(Path::to_path_buf);
    Isolated::over(inner, start).reading(["/proc/self/exe".into()].into_iter().chain(folder))
}

/// `nerite instance-worker`.
pub fn main(words: &[String]) -> ExitCode {
    let engine = match words {
        [_, library] => Engine::Onnx(library),
        [_, library, name, directory, completes] => {
            let options = Options { directory: directory.into(), auto_complete: completes == "true", reports: None };
            Engine::Compiled { name, library, options }
        }
        _ => return usage(),
    };
    // A service manager signals all processes of the service. The signals are ignored here, because the server decides when an instance ends. The last one
    // comes from a write that is too large, which is an error then.
    let signals = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let _handlers = signals.as_ref().ok().map(|runtime| {
        let _entered = runtime.enter();
        [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), file_too_large()].map(signal)
    });
    panics::install();
    nerite_cabi::name_aborting_backends();
    nerite_memory::limit_pool(POOL_BYTES_MAX);
    nerite_isolated::work(|metrics| engine.open(metrics))
}

fn usage() -> ExitCode {
    eprintln!("nerite {COMMAND}: servers start it themselves, for models whose parameter 'isolated' is true");
    ExitCode::from(2)
}

/// The engine that a child runs.
enum Engine<'a> {
    Onnx(&'a str),
    Compiled { name: &'a str, library: &'a str, options: Options },
}

impl Engine<'_> {
    fn open(self, metrics: Arc<dyn MetricSource>) -> Result<Arc<dyn Runtime>, String> {
        match self {
            Engine::Onnx(EMBEDDED) => Ok(Arc::new(nerite_onnx::Embedded)),
            Engine::Onnx(library) => {
                let runtime = nerite_ort::OnnxRuntime::open(Path::new(library)).map_err(|error| error.to_string())?;
                Ok(Arc::new(runtime))
            }
            Engine::Compiled { name, library, options } => {
                nerite_cabi::make_metrics_by(metrics);
                Ok(Arc::new(CompiledBackend::new(name, Path::new(library), options)))
            }
        }
    }
}
