//! How does the server run inside another program, without front ends?
//!
//! ```text
//!   program ─► C interface (crate `cabi`) ─► InProcess ─┬─ Api     metadata, statistics, loads, metrics
//!                                                       └─ Engine  inferences
//! ```

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use nerite_api::{Api, LogSwitches};
use nerite_backend::{Infer, Models};
use nerite_cabi::{ServerCalls, ServerReports};
use nerite_cuda::Device;
use nerite_engine::{Engine, RepositoryChange};
use nerite_locks::Mutex;
use nerite_python::Python;
use nerite_repository::ControlMode;
use nerite_request::setting::{LoadOptions, LogChange, LogSettings};
use nerite_request::{Code, Status};
use nerite_shm::leave_descriptors;
use nerite_watchdog::background;
use tokio::runtime::Runtime;

use crate::logger::{self, Streams};
use crate::reports::text;
use crate::serve::{Assembled, StartError, assemble, give_back, host_meter, watch_gpus};
use crate::settings::Settings;
use crate::{flags, panics, place};

/// The flags of a server without front ends. They come before those of the program.
const WITHOUT_FRONTS: [&str; 5] =
    ["--allow-http=false", "--allow-grpc=false", "--session-socket=off", "--ui=false", "--repository-poll-secs=0"];
/// Requests in flight get this much time even if the exit timeout is 0.
const CLOSING_MIN: Duration = Duration::from_secs(2);
/// The error of a server that was stopped, in Triton's words.
const EXITING: &str = "Server exiting";

/// The switches of the log, which all servers of a process share.
static LOG: Mutex<Option<Arc<LogSwitches>>> = Mutex::new(None);

/// A server in the process of another program.
pub struct InProcess {
    engine: Arc<Engine>,
    api: Api,
    /// Its metadata, which its backends also get.
    reports: Arc<dyn ServerReports>,
    python: Arc<Python>,
    /// For waits and periodic tasks. It exists until the end.
    runtime: Option<Runtime>,
    exit_timeout_secs: AtomicU64,
    control: ControlMode,
    /// Whether a stop was tried. Its wait is not repeated when the server is dropped.
    was_stopped: AtomicBool,
    // Dropped last.
    _counted: Counted,
}

impl InProcess {
    /// Makes a server with these flags of `nerite serve`, and loads the models of the start. Flags of front ends have no effect.
    pub fn start(words: &[String]) -> Result<InProcess, Status> {
        place::in_library();
        // The running executable is the host's, so sandboxes must be started with nerite's own program.
        nerite_sandbox::set_program(place::program());
        leave_descriptors();
        let words: Vec<String> =
            WITHOUT_FRONTS.iter().map(|&word| word.to_owned()).chain(words.iter().cloned()).collect();
        let given = flags::parse(&words).map_err(|error| Status::invalid(error.to_string()))?;
        let settings = Settings::read(&given).map_err(|error| Status::invalid(error.to_string()))?;
        let switches = share_log(&settings.log)?;
        for note in &settings.notes {
            log::warn!("{note}");
        }
        let (python, counted) = (Arc::new(Python::default()), Counted::new());
        let (Assembled { engine, api, gpus, reports }, outcome) =
            assemble(&settings, &python, switches, None).map_err(|error| status_of(&error))?;
        let (exit_timeout_secs, was_stopped) = (AtomicU64::new(settings.exit_timeout_secs), AtomicBool::new(false));
        let control = settings.models.control;
        let mut server = InProcess {
            engine,
            api,
            reports,
            python,
            runtime: None,
            exit_timeout_secs,
            control,
            was_stopped,
            _counted: counted,
        };
        // If the start fails after this, the loaded models are unloaded.
        outcome.map_err(|error| status_of(&error))?;
        server.runtime = Some(server.run_beside(&settings, gpus)?);
        Ok(server)
    }

    /// Starts the runtime for periodic tasks.
    fn run_beside(&self, settings: &Settings, gpus: Vec<Device>) -> Result<Runtime, Status> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("nerite-beside")
            .enable_all()
            .build()
            .map_err(|error| Status::internal(format!("no thread for the server: {error}")))?;
        let keep = give_back(self.api.clone(), Arc::clone(&self.engine));
        runtime.spawn(background(keep));
        if let Some(metrics) = &settings.metrics {
            let every = Duration::from_millis(metrics.interval_ms);
            if metrics.cpu {
                self.api.measure_host_by(host_meter(every));
            }
            if !gpus.is_empty() {
                runtime.spawn(background(watch_gpus(self.api.clone(), gpus, every)));
            }
        }
        Ok(runtime)
    }

    /// Waits for a call's answer. A thread of the server must not wait, because the answer may need it.
    fn wait<T>(&self, call: impl Future<Output = T>) -> Result<T, Status> {
        match &self.runtime {
            Some(runtime) if tokio::runtime::Handle::try_current().is_err() => Ok(runtime.block_on(call)),
            _ => Err(Status::unavailable("the server cannot be asked on a thread of its own")),
        }
    }

    fn check_exiting(&self) -> Result<(), Status> {
        if self.api.stopping() { Err(Status::unavailable(EXITING)) } else { Ok(()) }
    }
}

impl ServerCalls for InProcess {
    fn models(&self) -> Models {
        let engine: Arc<dyn Infer> = Arc::<Engine>::clone(&self.engine);
        Models::of(Arc::downgrade(&engine))
    }

    fn stop(&self) -> Result<(), Status> {
        self.api.begin_stopping();
        let patience = Duration::from_secs(self.exit_timeout_secs.load(Ordering::Relaxed)).max(CLOSING_MIN);
        let deadline = Instant::now() + patience;
        let has_ended = self.engine.stop(deadline);
        self.was_stopped.store(true, Ordering::Release);
        if has_ended {
            return Ok(());
        }
        Err(Status::internal("Exit timeout expired. Exiting immediately."))
    }

    fn set_exit_timeout(&self, seconds: u32) {
        self.exit_timeout_secs.store(seconds.into(), Ordering::Relaxed);
    }

    fn is_live(&self) -> Result<bool, Status> {
        self.check_exiting()?;
        Ok(self.api.live())
    }

    fn is_model_ready(&self, model: &str, version: i64) -> Result<bool, Status> {
        self.check_exiting()?;
        self.wait(self.api.model_ready(model, &text(version)))?
    }

    fn load(&self, model: &str, options: LoadOptions) -> Result<(), Status> {
        self.check_exiting()?;
        self.wait(self.api.load(model, options))?
    }

    fn unload(&self, model: &str, dependents: bool) -> Result<(), Status> {
        self.check_exiting()?;
        self.wait(self.api.unload(model, dependents))?
    }

    fn register(&self, repository: &str, names: &[(String, String)]) -> Result<(), Status> {
        self.check_exiting()?;
        self.engine.change_repositories(RepositoryChange::Register(Path::new(repository), names))
    }

    fn unregister(&self, repository: &str) -> Result<(), Status> {
        self.check_exiting()?;
        self.engine.change_repositories(RepositoryChange::Unregister(Path::new(repository)))
    }

    fn poll(&self) -> Result<(), Status> {
        self.check_exiting()?;
        if self.control != ControlMode::Poll {
            return Err(Status::unavailable("polling is disabled"));
        }
        self.engine.poll_now();
        Ok(())
    }
}

impl ServerReports for InProcess {
    fn is_ready(&self) -> Result<bool, Status> {
        self.check_exiting()?;
        self.wait(async { self.api.ready().await.is_ok() })
    }

    fn metadata(&self) -> Result<Vec<u8>, Status> {
        self.check_exiting()?;
        self.reports.metadata()
    }

    fn model_metadata(&self, model: &str, version: i64) -> Result<Vec<u8>, Status> {
        self.check_exiting()?;
        self.reports.model_metadata(model, version)
    }

    fn statistics(&self, model: &str, version: i64) -> Result<Vec<u8>, Status> {
        self.check_exiting()?;
        self.reports.statistics(model, version)
    }

    fn index(&self, ready_only: bool) -> Result<Vec<u8>, Status> {
        self.check_exiting()?;
        self.reports.index(ready_only)
    }

    fn metrics(&self) -> Result<String, Status> {
        self.reports.metrics()
    }
}

/// The servers of this process.
static SERVERS: Mutex<usize> = Mutex::new(0);

/// Counts one of them, until it is dropped.
struct Counted;

impl Counted {
    fn new() -> Counted {
        *SERVERS.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Counted
    }
}

impl Drop for Counted {
    /// Models that still run keep their sandboxes. Other servers may use theirs, so only the last server removes what is left.
    fn drop(&mut self) {
        let mut servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
        *servers -= 1;
        if *servers == 0 {
            nerite_sandbox::end();
        }
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        if !self.was_stopped.load(Ordering::Acquire)
            && let Err(status) = self.stop()
        {
            log::error!("{status}");
        }
        match self.runtime.take() {
            // A thread of the runtime cannot wait for the end of the runtime.
            Some(runtime) if tokio::runtime::Handle::try_current().is_ok() => runtime.shutdown_background(),
            Some(runtime) => runtime.shutdown_timeout(CLOSING_MIN),
            None => {}
        }
        self.python.end();
    }
}

/// The log of the process, which the first server makes. Later ones say what it shows from then on.
fn share_log(settings: &LogSettings) -> Result<Arc<LogSwitches>, Status> {
    let mut shared = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(switches) = &*shared {
        let LogSettings { file, info, warning, error, verbose_level, format } = settings.clone();
        let (info, warning, error) = (Some(info), Some(warning), Some(error));
        let change =
            LogChange { file: None, info, warning, error, verbose_level: Some(verbose_level), format: Some(format) };
        if switches.change(change)?.file != file {
            log::warn!("the log stays where the first server of this process has it; '{file}' is not written");
        }
        return Ok(Arc::clone(switches));
    }
    let switches = Arc::new(LogSwitches::new(settings.clone()));
    let file = Some(settings.file.as_str()).filter(|file| !file.is_empty()).map(Path::new);
    logger::install(Arc::clone(&switches), file, Streams::Stderr)
        .map_err(|error| Status::internal(format!("failed to open log file '{}': {error}", settings.file)))?;
    panics::install();
    *shared = Some(Arc::clone(&switches));
    Ok(switches)
}

/// The status that a program gets for an error of the start. The error's text begins with the kind.
fn status_of(StartError(text): &StartError) -> Status {
    let codes = [
        Code::Internal,
        Code::NotFound,
        Code::InvalidArg,
        Code::Unavailable,
        Code::Unsupported,
        Code::AlreadyExists,
        Code::Cancelled,
    ];
    let text = text.strip_prefix("creating server: ").unwrap_or(text);
    let named = codes.into_iter().find_map(|code| Some((code, text.strip_prefix(code.name())?.strip_prefix(" - ")?)));
    let (code, message) = named.unwrap_or((Code::Internal, text));
    Status::new(code, message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[track_caller]
    fn check(text: &str, code: Code, message: &str) {
        assert_eq!(status_of(&StartError(text.to_owned())), Status::new(code, message));
    }

    #[test]
    fn an_error_of_the_start_has_its_kind_and_its_sentence() {
        check("creating server: Invalid argument - no 'x'", Code::InvalidArg, "no 'x'");
        check("creating server: Internal - failed to load all models", Code::Internal, "failed to load all models");
        check("no thread - of any kind", Code::Internal, "no thread - of any kind");
    }

    #[test]
    #[ignore = "alone: asserts that a drop takes less than 2 s"]
    fn a_server_whose_requests_go_on_waits_once() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("slow/1")).unwrap();
        let config = "backend: 'identity' max_batch_size: 0 input { name: 'I' data_type: TYPE_INT8 dims: 1 } \
                      output { name: 'O' data_type: TYPE_INT8 dims: 1 } \
                      parameters { key: 'execute_delay_ms' value { string_value: '60000' } }";
        std::fs::write(folder.path().join("slow/config.pbtxt"), config).unwrap();
        let server = InProcess::start(&[format!("--model-repository={}", folder.path().display())]).unwrap();
        server.set_exit_timeout(0);
        let data = nerite_memory::Buffer::from(vec![1u8]);
        let shape = nerite_tensor::Shape::from_slice(&[1]);
        let input = nerite_tensor::Tensor { name: "I".into(), datatype: nerite_tensor::DataType::Int8, shape, data };
        let request =
            nerite_request::Request::new(vec![input], std::iter::empty().collect(), nerite_request::Reply::new(drop));
        server.models().infer("slow", None, request);
        assert!(server.stop().is_err(), "the request goes on");
        let begun = Instant::now();
        drop(server);
        assert!(begun.elapsed() < CLOSING_MIN, "{:?}", begun.elapsed());
    }

    #[test]
    fn flags_that_contradict_each_other_make_no_server() {
        let refused = InProcess::start(&["--model-control-mode=none".to_owned(), "--load-model=a".to_owned()]);
        assert!(
            refused.is_err_and(|status| status.code == Code::InvalidArg && status.message.contains("--load-model"))
        );
        let refused = InProcess::start(&[]);
        assert!(refused.is_err_and(|status| status.message.contains("--model-repository must be specified")));
    }
}
