//! How is the server wired together, and how does it end?

mod gpu;
mod gpu_metrics;
mod hangup;
mod host;
mod listen;
mod models;
mod parent;
mod phase;
mod sessions;
mod signals;
mod started;
mod stop;
mod trim;
mod watch;

pub(crate) use gpu_metrics::watch as watch_gpus;
pub(crate) use host::meter as host_meter;
pub(crate) use trim::give_back;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nerite_api::{Api, LogFormat, LogSwitches, Tokens};
use nerite_cabi::{LateReports, ServerReports};
use nerite_cuda::Device;
use nerite_engine::Engine;
use nerite_listen::Peers;
use nerite_python::Python;
use nerite_request::setting::LogSettings;
use nerite_shm::{Pools, Registries};
use tokio::signal::unix::Signal;

use crate::config;
use crate::descriptors;
use crate::flags::{self, Command, ParseError};
use crate::logger::{self, PLAIN, Streams};
use crate::panics;
use crate::reports::Reports;
use crate::settings::{Settings, cores};
use crate::tables::table;

/// At most one part in this many of the memory budget is kept as freed tensor memory for the next requests.
const BUDGET_PER_KEPT: u64 = 4;

/// A failure that ends the start, in Triton's words.
#[derive(Debug, thiserror::Error)]
#[error("error: {0}")]
pub struct StartError(pub String);

/// `nerite serve`, or the whole program under the name `tritonserver`.
pub fn main(command: Command, words: &[String]) -> ExitCode {
    let settings = match read_settings(command, words) {
        Ok(settings) => settings,
        Err(Refusal::Help(usage)) => {
            print!("{usage}");
            return ExitCode::SUCCESS;
        }
        Err(Refusal::Fault(message)) => {
            eprint!("{message}");
            return ExitCode::FAILURE;
        }
    };
    let log_settings = settings.log.clone();
    with_processes(|python| serve(settings, python)).unwrap_or_else(|error| {
        report(&error, &log_settings);
        ExitCode::FAILURE
    })
}

/// Loads the models of the start, as a server with these settings would, and unloads them. The log goes to the terminal.
pub fn load_models(settings: Settings) -> Result<(), String> {
    let log = LogSettings { file: String::new(), ..settings.log.clone() };
    let settings = Settings { exit_on_error: true, log, ..settings };
    with_processes(|python| {
        let (switches, _drain) = begin(&settings)?;
        let (Assembled { engine, .. }, outcome) = assemble(&settings, python, switches, None)?;
        let has_ended = engine.stop(Instant::now() + Duration::from_secs(settings.exit_timeout_secs));
        outcome?;
        let seconds = settings.exit_timeout_secs;
        has_ended.then_some(()).ok_or_else(|| StartError(format!("the models did not unload within {seconds} s")))
    })
    .map_err(|error| error.to_string())
}

/// Ends the processes that models started, and flushes the log, whatever the outcome is.
fn with_processes<T>(run: impl FnOnce(&Arc<Python>) -> Result<T, StartError>) -> Result<T, StartError> {
    let python = Arc::new(Python::default());
    let ended = run(&python);
    python.end();
    nerite_sandbox::end();
    log::logger().flush();
    ended
}

/// Prints the error as Triton does. If the log is of JSON, the error is a line of it, and is not printed where that line is on stderr.
fn report(error: &StartError, log_settings: &LogSettings) {
    let is_json = LogFormat::parse(&log_settings.format) == Some(LogFormat::Json);
    if is_json {
        log::error!("{}", error.0);
        log::logger().flush();
    }
    let is_on_stderr = is_json && log_settings.error && log_settings.file.is_empty();
    if !is_on_stderr {
        eprintln!("{error}");
    }
}

/// Why there are no settings.
enum Refusal {
    /// Help goes to the standard output, where a pager reads it. Triton prints it as an error, and so does `tritonserver`.
    Help(String),
    Fault(String),
}

fn read_settings(command: Command, words: &[String]) -> Result<Settings, Refusal> {
    let given = flags::parse(words).map_err(|error| match (&error, command) {
        (ParseError::Help, Command::Serve) => Refusal::Help(command.refuse(&error)),
        _ => Refusal::Fault(command.refuse(&error)),
    })?;
    let wrong = |error: String| Refusal::Fault(command.refuse_values(error));
    let (given, notes) = config::complete(given).map_err(wrong)?;
    let mut settings = Settings::read(&given).map_err(|error| wrong(config::locate(&error, &given)))?;
    settings.notes.extend(notes);
    Ok(settings)
}

/// Opens the log. Also returns the signal to drain.
fn begin(settings: &Settings) -> Result<(Arc<LogSwitches>, Signal), StartError> {
    let switches = Arc::new(LogSwitches::new(settings.log.clone()));
    let file = Some(settings.log.file.as_str()).filter(|file| !file.is_empty()).map(std::path::Path::new);
    logger::install(Arc::clone(&switches), file, Streams::Both)
        .map_err(|error| StartError(format!("failed to open log file '{}': {error}", settings.log.file)))?;
    // Before the first line of the log, which may be too large for its file.
    let drain = signals::take_harmless()?;
    if file.is_some() {
        hangup::reopen_log(settings.log.file.clone())?;
    }
    panics::install();
    nerite_cabi::name_aborting_backends();
    Ok((switches, drain))
}

fn serve(settings: Settings, python: &Arc<Python>) -> Result<ExitCode, StartError> {
    let (switches, drain) = begin(&settings)?;
    for note in &settings.notes {
        log::warn!("{note}");
    }
    if let Some(fault) = settings.trace.file_fault() {
        log::warn!("traces cannot be written: {fault}");
    }
    let descriptors = descriptors::raise_limit();
    let connections = settings.connections.limits(descriptors);
    if let Some(warning) = descriptors::warning(descriptors, connections.all_max) {
        log::warn!("{warning}");
    }
    if let Some(warning) = settings.connections.warning(descriptors) {
        log::warn!("{warning}");
    }
    let certificates = listen::read_certificates(&settings)?;
    let tokens = settings.tokens_file.as_deref().map(Tokens::from_file).transpose();
    let tokens = tokens.map_err(|error| StartError(error.to_string()))?;
    let (Assembled { engine, api, gpus, reports: _reports }, outcome) = assemble(&settings, python, switches, tokens)?;
    outcome?;
    let turns = api.turns().clone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(settings.front_threads(cores()))
        .thread_name("nerite-front")
        .on_thread_park(move || turns.thread_parks())
        .enable_all()
        .build()
        .map_err(|error| StartError(format!("no threads for the front ends: {error}")))?;
    if let Err(error) = nerite_watchdog::start() {
        log::warn!("no thread to watch the front ends: {error}; what keeps them is told when it has ended");
    }
    nerite_engine::watch_by(Box::new(watch::OnFrontThreads(runtime.handle().clone())));
    let clean = runtime.block_on(async {
        let signals = stop::Signals::listen(settings.parent_pid, settings.log.file.is_empty(), drain)?;
        let fronts = listen::start(&api, &settings, certificates, &Peers::new(connections))?;
        stop::serve_until_signal(signals, fronts, &api, &engine, gpus, &settings).await
    })?;
    // Tasks of clients that never finished must not hold the process.
    runtime.shutdown_background();
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A server without front ends.
pub(crate) struct Assembled {
    /// Its models.
    pub engine: Arc<Engine>,
    /// The calls over them.
    pub api: Api,
    /// The GPUs whose metrics are shown.
    pub gpus: Vec<Device>,
    /// The server's reports to its backends. Backends can use them as long as this exists.
    pub reports: Arc<dyn ServerReports>,
}

/// Loads the models of the start and prints the tables. Also returns whether the server can start with the outcome.
pub(crate) fn assemble(
    settings: &Settings,
    python: &Arc<Python>,
    switches: Arc<LogSwitches>,
    tokens: Option<Tokens>,
) -> Result<(Assembled, Result<(), StartError>), StartError> {
    let gpu = gpu::open(&settings.gpu)?;
    let late = LateReports::default();
    let (engine, outcome) = models::start(settings, gpu.as_ref(), python, &late)?;
    print_tables(&engine, settings);
    let api = make_api(&engine, switches, settings, tokens, gpu.as_ref().ok());
    let shows_gpus = settings.metrics.as_ref().is_some_and(|metrics| metrics.gpu);
    let gpus = gpu.as_ref().ok().filter(|_| shows_gpus).map(|host| host.devices.clone()).unwrap_or_default();
    let reports: Arc<dyn ServerReports> = Arc::new(Reports::new(api.clone()));
    late.set(&reports);
    Ok((Assembled { engine, api, gpus, reports }, outcome))
}

fn make_api(
    engine: &Arc<Engine>,
    switches: Arc<LogSwitches>,
    settings: &Settings,
    tokens: Option<Tokens>,
    gpu: Option<&gpu::GpuHost>,
) -> Api {
    let gpu = gpu.map(|host| host.gpu.clone());
    let regions = Registries::new(settings.allow_client_shm, gpu.clone());
    nerite_memory::limit_pool(settings.budgets.all.high / BUDGET_PER_KEPT);
    let options = nerite_api::Options {
        id: settings.id.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_s: started::started_s(),
        restrictions: settings.restrictions.clone(),
        tokens,
        log_access: settings.log_access,
        log_access_health: settings.log_access_health,
        regions: settings.regions.clone(),
        sequence_scope: settings.sequence_scope,
        http_forward: settings.http.as_ref().and_then(|front| front.forward.clone()),
        grpc_forward: settings.grpc.as_ref().and_then(|front| front.forward.clone()),
        http_input_bytes_max: settings.http_input_bytes_max,
        strict_readiness: settings.strict_readiness,
        trace: settings.trace.clone(),
        counter_latencies: settings.metrics.as_ref().is_some_and(|metrics| metrics.counter_latencies),
    };
    Api::with_pools(Arc::clone(engine), regions, Pools::with_gpu(settings.sessions.limits, gpu), switches, options)
}

/// The tables that Triton prints once its models are loaded; scripts look for them.
fn print_tables(engine: &Engine, settings: &Settings) {
    let backends: Vec<_> = engine
        .runtimes()
        .iter()
        .filter(|r| r.name() != "ensemble")
        .map(|r| vec![r.name().to_owned(), r.engine(), backend_config(settings, r.name())])
        .collect();
    log::info!(target: PLAIN, "\n{}", table(&["Backend", "Path", "Config"], &backends));
    let status = |entry: &nerite_request::report::IndexEntry| match entry.reason.as_str() {
        "" => entry.state.to_owned(),
        reason => format!("{}: {reason}", entry.state),
    };
    let models: Vec<_> = engine
        .index(false)
        .unwrap_or_default()
        .iter()
        .filter(|entry| !entry.state.is_empty())
        .map(|entry| {
            let version = entry.version.map_or_else(|| "-".to_owned(), |version| version.to_string());
            vec![entry.name.clone(), version, status(entry)]
        })
        .collect();
    log::info!(target: PLAIN, "\n{}", table(&["Model", "Version", "Status"], &models));
    log::info!(target: PLAIN, "\n{}", table(&["Option", "Value"], &options(settings)));
}

fn backend_config(settings: &Settings, backend: &str) -> String {
    let pairs = settings.backend_config.iter().filter(|(of, _, _)| of.is_empty() || of == backend);
    let pairs: Vec<_> = pairs.map(|(_, key, value)| format!("\"{key}\":\"{value}\"")).collect();
    format!("{{{}}}", pairs.join(","))
}

fn options(settings: &Settings) -> Vec<Vec<String>> {
    let mut rows = vec![
        vec!["server_id".to_owned(), settings.id.clone()],
        vec!["server_version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()],
    ];
    for (at, path) in settings.models.repositories.iter().enumerate() {
        rows.push(vec![format!("model_repository_path[{at}]"), path.display().to_string()]);
    }
    let word = |on: bool| if on { "1" } else { "0" }.to_owned();
    rows.push(vec!["model_control_mode".to_owned(), settings.models.control.name().to_owned()]);
    rows.push(vec!["strict_model_config".to_owned(), word(!settings.models.auto_complete)]);
    rows.push(vec!["model_config_name".to_owned(), settings.models.config_name.clone()]);
    let limiter = if settings.rates.is_some() { "EXEC_COUNT" } else { "OFF" };
    rows.push(vec!["rate_limit".to_owned(), limiter.to_owned()]);
    for (at, (name, device, count)) in settings.rates.iter().flatten().enumerate() {
        let device = device.map_or(-1, i64::from);
        let entry = format!("{{\"name\":\"{name}\", \"count\":{count} \"device\":{device}}}");
        rows.push(vec![format!("rate_limit_resource[{at}]"), entry]);
    }
    rows.push(vec!["pinned_memory_pool_byte_size".to_owned(), settings.gpu.pinned_pool_bytes.to_string()]);
    rows.push(vec!["strict_readiness".to_owned(), word(settings.strict_readiness)]);
    rows.push(vec!["exit_timeout".to_owned(), settings.exit_timeout_secs.to_string()]);
    rows.push(vec!["cache_enabled".to_owned(), word(settings.response_cache.is_some())]);
    rows.push(vec!["allow_model_upload".to_owned(), word(settings.models.allow_upload)]);
    rows.push(vec!["allow_client_shm".to_owned(), word(settings.allow_client_shm)]);
    rows
}
