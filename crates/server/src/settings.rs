//! What did the operator decide?

mod accepted;
mod access;
pub mod backends;
mod budgets;
mod cache;
mod collector;
mod connections;
mod gpu;
mod metrics;
mod page;
mod policies;
mod proxies;
mod queues;
mod rates;
mod regions;
mod sequences;
mod sessions;
mod sockets;
mod threads;
mod tls;
mod tracing;
mod web_sites;

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use nerite_api::{LogFormat, RegionRules, Restriction, TraceConfig};
use nerite_budget::Limits;
use nerite_engine::{HostPolicies, LatencyMetrics, QueueLimits};
use nerite_listen::{TlsFiles, TrustedProxies};
use nerite_repository::ControlMode;
use nerite_request::SequenceScope;
use nerite_request::setting::LogSettings;
use regex::{Regex, RegexBuilder};

use crate::flags::{BadValue, Given, Honour, Values, bad, sides};

pub use connections::Connections;
pub use gpu::{CudaLibrary, GpuSettings};
pub use page::Ui;
pub use rates::RateResource;
pub use sessions::{SessionSocket, Sessions};
pub use threads::cores;
use tls::TlsFlags;
pub use web_sites::Allowed;

/// All settings of `nerite serve`, checked.
#[derive(Debug)]
pub struct Settings {
    /// The server's name.
    pub id: String,
    /// Seconds for in-flight requests at the end.
    pub exit_timeout_secs: u64,
    /// How long the server drains before it stops, in seconds.
    pub drain_seconds: u64,
    /// The process whose end stops the server.
    pub parent_pid: Option<u32>,
    /// What the log shows.
    pub log: LogSettings,
    /// What is traced.
    pub trace: TraceConfig,
    /// The models, and how they are served.
    pub models: Models,
    /// HTTP; `None` if it is off.
    pub http: Option<FrontEndSettings>,
    /// gRPC; `None` if it is off.
    pub grpc: Option<FrontEndSettings>,
    /// The settings of gRPC alone.
    pub grpc_tuning: GrpcTuning,
    /// Metrics; `None` if they are off.
    pub metrics: Option<Metrics>,
    /// The page for browsers; `None` if it is off.
    pub ui: Option<Ui>,
    /// What browsers may send to the HTTP and metrics ports.
    pub allowed: Allowed,
    /// The limits on connections.
    pub connections: Connections,
    /// The proxies that name the client of each connection of HTTP and gRPC.
    pub trusted_proxies: TrustedProxies,
    /// Calls that want a header.
    pub restrictions: Vec<Restriction>,
    /// Whether each request is a line of the log.
    pub log_access: bool,
    /// Whether health probes are lines of the log as well, where each request is.
    pub log_access_health: bool,
    /// The file of tokens, if there is one.
    pub tokens_file: Option<PathBuf>,
    /// Largest HTTP input in bytes.
    pub http_input_bytes_max: u64,
    /// Threads for the front ends, if the operator said how many.
    pub threads: Option<usize>,
    /// Whether clients may register shared memory.
    pub allow_client_shm: bool,
    /// Which objects a client may register, and which regions it reaches.
    pub regions: RegionRules,
    /// Which clients share their sequences.
    pub sequence_scope: SequenceScope,
    /// How much clients may make the server hold.
    pub budgets: Limits,
    /// The session socket and what it lends.
    pub sessions: Sessions,
    /// Resources that instances share; `None` without a rate limiter.
    pub rates: Option<Vec<RateResource>>,
    /// Cores of instances, by host policy.
    pub policies: HostPolicies,
    /// Bytes of the response cache, if there is one.
    pub response_cache: Option<u64>,
    /// GPUs and the memory that is locked for them.
    pub gpu: GpuSettings,
    /// Whether a failing model ends the start.
    pub exit_on_error: bool,
    /// Whether ready means that all models are.
    pub strict_readiness: bool,
    /// `--backend-config`: backend (empty for all), key, value.
    pub backend_config: Vec<(String, String, String)>,
    /// Where compiled backends are; `None` for Triton's default directory, whose backends replace no built-in ones.
    pub backend_directory: Option<PathBuf>,
    /// Library of ONNX Runtime.
    pub onnxruntime_library: Option<PathBuf>,
    /// Log lines about flags without an effect. Each begins with its flag.
    pub notes: Vec<String>,
}

/// The instances for each core that the configurations of one client may ask for.
const INSTANCES_PER_CORE: usize = 4;
/// Triton's variable: with `0`, the instances of a model are made one after the other.
const PARALLEL_INSTANCES: &str = "TRITON_PARALLEL_INSTANCE_LOADING";

/// The models' side.
#[derive(Debug)]
pub struct Models {
    /// Repositories in the order given.
    pub repositories: Vec<PathBuf>,
    /// Who decides which models are loaded.
    pub control: ControlMode,
    /// Time between two looks at the repositories in control mode `poll`; zero for no second look.
    pub poll: Duration,
    /// Models to load at start.
    pub load: Vec<String>,
    /// The most bytes that loaded models may have in control mode `demand`.
    pub bytes_max: Option<u64>,
    /// Whether a load request may bring files.
    pub allow_upload: bool,
    /// The most instances of the models whose configurations one client sent.
    pub client_instances_max: usize,
    /// Whether models of different repositories may have the same name.
    pub namespacing: bool,
    /// `configs/<name>.pbtxt`.
    pub config_name: String,
    /// Whether configurations are completed.
    pub auto_complete: bool,
    /// Models loading at the same time.
    pub load_threads: usize,
    /// Instances of one model that are made at the same time.
    pub instance_threads: usize,
    /// How often a failed load is tried again.
    pub load_retries: usize,
    /// The limits on the queues of models.
    pub queues: QueueLimits,
}

/// One front end.
#[derive(Debug)]
pub struct FrontEndSettings {
    /// Address it listens at.
    pub address: String,
    /// Port it listens at; `None` if it has only its Unix socket.
    pub port: Option<u16>,
    /// Whether other servers may share the port.
    pub reuse_port: bool,
    /// Unix socket it listens at, besides the port or alone.
    pub socket: Option<PathBuf>,
    /// The mode of that socket's file.
    pub socket_mode: u32,
    /// Headers that become parameters.
    pub forward: Option<Regex>,
    /// The files that secure its TCP port; `None` for a plain one.
    pub tls: Option<TlsFiles>,
}

/// Settings of gRPC connections, in ms where they are times.
#[derive(Debug)]
pub struct GrpcTuning {
    /// Responses of one streamed request that may wait.
    pub responses_max: usize,
    /// Silence before a ping.
    pub keepalive_time_ms: u64,
    /// Time for its answer.
    pub keepalive_timeout_ms: u64,
    /// Age at which a connection is asked to close.
    pub max_age_ms: Option<u64>,
    /// Time after that until it is closed.
    pub max_age_grace_ms: Option<u64>,
    /// Compression of responses: none, low, medium, high.
    pub compression: String,
}

/// The metrics' side.
#[derive(Debug)]
pub struct Metrics {
    /// Address they listen at.
    pub address: String,
    /// Port they listen at.
    pub port: u16,
    /// Whether the processor is shown.
    pub cpu: bool,
    /// Whether GPUs are shown.
    pub gpu: bool,
    /// Interval at which both are looked at, in ms.
    pub interval_ms: u64,
    /// Whether the counters of durations are shown.
    pub counter_latencies: bool,
    /// Which distributions of latencies are measured.
    pub latencies: LatencyMetrics,
    /// The files that secure the port; `None` for a plain one.
    pub tls: Option<TlsFiles>,
}

/// The front ends, without the rest of the settings. A check of whether a server is ready needs no others.
#[derive(Debug)]
pub struct Fronts {
    /// HTTP; `None` if it is off.
    pub http: Option<FrontEndSettings>,
    /// gRPC; `None` if it is off.
    pub grpc: Option<FrontEndSettings>,
    /// Calls that want a header.
    pub restrictions: Vec<Restriction>,
}

impl Fronts {
    /// Checks these settings alone.
    pub fn read(given: &[Given]) -> Result<Fronts, SettingsError> {
        let values = Values(given);
        Ok(Fronts {
            http: front(&values, &HTTP)?,
            grpc: front(&values, &GRPC)?,
            restrictions: access::restrictions(&values)?,
        })
    }
}

/// Why the settings are invalid.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// One flag's value.
    #[error(transparent)]
    Value(#[from] BadValue),
    /// Two flags that contradict each other, or one that is out of its range.
    #[error("{text}")]
    Contradiction {
        /// What is wrong, in Triton's words.
        text: String,
        /// The flags without which the others can be read, in order to find their faults.
        without: Vec<&'static str>,
    },
}

/// Flags that contradict each other. The others can be read without those of `without`.
fn contradiction(text: impl Into<String>, without: &[&'static str]) -> SettingsError {
    SettingsError::Contradiction { text: text.into(), without: without.to_vec() }
}

impl Settings {
    /// Checks what was given and fills in the rest.
    pub fn read(given: &[Given]) -> Result<Settings, SettingsError> {
        let settings = Settings::read_apart(given)?;
        settings.check_places()?;
        Ok(settings)
    }

    /// Refuses two services at one address and port. With port 0 each gets a port of its own.
    pub fn check_places(&self) -> Result<(), SettingsError> {
        let front = |front: &FrontEndSettings| front.port.map(|port| (front.address.clone(), port));
        let places = [
            ("HTTP", self.http.as_ref().and_then(front)),
            ("GRPC", self.grpc.as_ref().and_then(front)),
            ("metrics", self.metrics.as_ref().map(|metrics| (metrics.address.clone(), metrics.port))),
        ];
        for (at, (name, place)) in places.iter().enumerate() {
            let Some((address, port)) = place else { continue };
            let same = places[at + 1..].iter().find(|(_, other)| *port != 0 && other == place);
            if let Some((other, _)) = same {
                let text = format!(
                    "The server cannot listen to {name} requests and {other} requests at the same address and port {address}:{port}"
                );
                return Err(contradiction(text, &[]));
            }
        }
        Ok(())
    }

    /// The settings, before it is known whether their services have places of their own.
    pub fn read_apart(given: &[Given]) -> Result<Settings, SettingsError> {
        let values = Values(given);
        let Fronts { http, grpc, restrictions } = Fronts::read(given)?;
        accepted::check(&values)?;
        let http_input_bytes_max = values.int("http-max-input-size", 64i64 << 20)?;
        if http_input_bytes_max <= 0 {
            let flag = "http-max-input-size";
            return Err(contradiction(format!("Error: --{flag} must be greater than 0."), &[flag]));
        }
        let metrics_address = values.text("metrics-address").or(values.text("http-address")).unwrap_or("0.0.0.0");
        let (metrics, metrics_notes) = if values.bool("allow-metrics", true)? {
            let (metrics, notes) = metrics::metrics(&values, metrics_address)?;
            (Some(metrics), notes)
        } else {
            (None, Vec::new())
        };
        let (trace, trace_notes) = tracing::tracing(&values)?;
        let backend_config = backend_config(&values)?;
        // Those of a directory may replace built-in ones.
        let has_directory = values.has("backend-directory");
        let backend_notes = if has_directory { Vec::new() } else { backends::unknown(&backend_config) };
        Ok(Settings {
            id: values.text("id").unwrap_or("triton").to_owned(),
            exit_timeout_secs: values.whole_seconds("exit-timeout-secs", 30)?,
            drain_seconds: values.whole_seconds("drain-seconds", 0)?,
            parent_pid: values.int_if_given("parent-pid")?,
            log: log_settings(&values)?,
            trace,
            models: models(&values)?,
            grpc_tuning: grpc_tuning(&values)?,
            metrics,
            ui: page::ui(&values, http.as_ref())?,
            allowed: web_sites::allowed(&values)?,
            connections: connections::connections(&values)?,
            trusted_proxies: proxies::trusted(&values)?,
            restrictions,
            log_access: values.bool("log-access", false)?,
            log_access_health: values.bool("log-access-health", true)?,
            tokens_file: values.text("access-tokens-file").filter(|path| !path.is_empty()).map(PathBuf::from),
            http_input_bytes_max: http_input_bytes_max as u64,
            threads: values.int_if_given("http-thread-count")?,
            allow_client_shm: values.bool("allow-client-shm", true)?,
            regions: regions::rules(&values)?,
            sequence_scope: sequences::scope(&values)?,
            budgets: budgets::budgets(&values, nerite_memory::allocatable_bytes())?,
            sessions: sessions::sessions(&values)?,
            rates: rates::rates(&values)?,
            policies: policies::policies(&values)?,
            response_cache: cache::response_cache(&values)?,
            gpu: gpu::gpu(&values)?,
            exit_on_error: values.bool("exit-on-error", true)?,
            strict_readiness: values.bool("strict-readiness", true)?,
            backend_config,
            backend_directory: values.text("backend-directory").map(PathBuf::from),
            onnxruntime_library: values.text("onnxruntime-library").map(PathBuf::from),
            notes: [notes(given), trace_notes, metrics_notes, backend_notes].concat(),
            http,
            grpc,
        })
    }
}

/// The names of a front end's flags.
struct FrontFlags {
    allow: &'static str,
    address: &'static str,
    port: &'static str,
    default_port: u16,
    reuse: &'static str,
    socket: &'static str,
    socket_mode: &'static str,
    forward: &'static str,
    tls: TlsFlags,
}

const HTTP: FrontFlags = FrontFlags {
    allow: "allow-http",
    address: "http-address",
    port: "http-port",
    default_port: 8000,
    reuse: "reuse-http-port",
    socket: "http-socket",
    socket_mode: "http-socket-mode",
    forward: "http-header-forward-pattern",
    tls: TlsFlags {
        use_ssl: "http-use-ssl",
        mutual: "http-use-ssl-mutual",
        cert: "http-server-cert",
        key: "http-server-key",
        roots: "http-root-cert",
    },
};
const GRPC: FrontFlags = FrontFlags {
    allow: "allow-grpc",
    address: "grpc-address",
    port: "grpc-port",
    default_port: 8001,
    reuse: "reuse-grpc-port",
    socket: "grpc-socket",
    socket_mode: "grpc-socket-mode",
    forward: "grpc-header-forward-pattern",
    tls: TlsFlags {
        use_ssl: "grpc-use-ssl",
        mutual: "grpc-use-ssl-mutual",
        cert: "grpc-server-cert",
        key: "grpc-server-key",
        roots: "grpc-root-cert",
    },
};

fn front(values: &Values<'_>, flags: &FrontFlags) -> Result<Option<FrontEndSettings>, SettingsError> {
    let has_port = values.bool(flags.allow, true)?;
    let socket = values.text(flags.socket).filter(|path| !path.is_empty()).map(PathBuf::from);
    if !has_port && socket.is_none() {
        return Ok(None);
    }
    let port = values.int(flags.port, flags.default_port)?;
    let pattern = values.text(flags.forward).filter(|pattern| !pattern.is_empty());
    let compile = |pattern: &str| {
        let built = RegexBuilder::new(pattern).case_insensitive(true).size_limit(1 << 20).build();
        built.map_err(|error| crate::flags::BadValue { flag: flags.forward, reason: error.to_string() })
    };
    Ok(Some(FrontEndSettings {
        address: values.text(flags.address).unwrap_or("0.0.0.0").to_owned(),
        port: has_port.then_some(port),
        reuse_port: values.bool(flags.reuse, false)?,
        socket,
        socket_mode: sockets::socket_mode(values, flags.socket_mode)?,
        forward: pattern.map(compile).transpose()?,
        tls: tls::tls_files(values, &flags.tls)?.filter(|_| has_port),
    }))
}

fn log_settings(values: &Values<'_>) -> Result<LogSettings, SettingsError> {
    let format = values.text("log-format").unwrap_or("default");
    if LogFormat::parse(format).is_none() {
        let text = format!("invalid argument for --log-format: it is default, ISO8601 or json. Got {format}");
        return Err(bad("log-format", text).into());
    }
    // Triton takes a truth value here as well as a number.
    let word = values.text("log-verbose").filter(|word| word.parse::<i64>().is_err());
    let verbose_level = match word.and_then(crate::flags::bool_of) {
        Some(on) => u32::from(on),
        None => values.int("log-verbose", 0i64)?.max(0) as u32,
    };
    Ok(LogSettings {
        file: values.text("log-file").unwrap_or("").to_owned(),
        info: values.bool("log-info", true)?,
        warning: values.bool("log-warning", true)?,
        error: values.bool("log-error", true)?,
        verbose_level,
        format: format.to_owned(),
    })
}

fn models(values: &Values<'_>) -> Result<Models, SettingsError> {
    let word = values.text("model-control-mode").unwrap_or("none");
    let Some(control) = ControlMode::parse(word) else {
        let text =
            format!("invalid argument for --model-control-mode: it is none, poll, explicit or demand. Got {word}");
        return Err(bad("model-control-mode", text).into());
    };
    if !matches!(control, ControlMode::Explicit | ControlMode::Demand) && values.has("load-model") {
        let text = "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.";
        return Err(contradiction(text, &["load-model"]));
    }
    let allow_upload = values.bool("allow-model-upload", control == ControlMode::Explicit)?;
    if allow_upload && control != ControlMode::Explicit {
        let text =
            "Error: Use of '--allow-model-upload=true' requires setting '--model-control-mode=explicit' as well.";
        return Err(contradiction(text, &["allow-model-upload"]));
    }
    if control != ControlMode::Demand && values.has("models-max-bytes") {
        let text = "Error: Use of '--models-max-bytes' requires setting '--model-control-mode=demand' as well.";
        return Err(contradiction(text, &["models-max-bytes"]));
    }
    let namespacing = values.bool("model-namespacing", false)?;
    if namespacing && control == ControlMode::Demand {
        let text = "Error: Use of '--model-namespacing=true' requires another control mode than '--model-control-mode=demand': a request names no repository.";
        return Err(contradiction(text, &["model-namespacing"]));
    }
    if values.text("model-config-name") == Some("") {
        return Err(bad("model-config-name", "Error: empty argument for --model-config-name").into());
    }
    Ok(Models {
        repositories: repositories(values),
        control,
        load: values.all("load-model").map(str::to_owned).collect(),
        bytes_max: values.bytes_if_given("models-max-bytes")?,
        allow_upload,
        client_instances_max: values.int("client-instances-max", INSTANCES_PER_CORE * cores())?,
        namespacing,
        config_name: values.text("model-config-name").unwrap_or("").to_owned(),
        auto_complete: !(values.has("disable-auto-complete-config") || values.bool("strict-model-config", false)?),
        poll: Duration::from_secs(values.whole_seconds("repository-poll-secs", 15)?),
        load_threads: values.int("model-load-thread-count", 4usize)?.max(1),
        instance_threads: if std::env::var(PARALLEL_INSTANCES).is_ok_and(|value| value.trim() == "0") {
            1
        } else {
            values.int("model-load-thread-count", 4usize)?.max(1)
        },
        load_retries: values.int("model-load-retry-count", 0usize)?,
        queues: queues_of_environment(values)?,
    })
}

/// The paths of both flags. As in Triton, a path that is given twice counts once.
fn repositories(values: &Values<'_>) -> Vec<PathBuf> {
    let mut known = HashSet::new();
    let stores = values.all("model-repository").chain(values.all("model-store"));
    stores.filter(|store| known.insert(*store)).map(PathBuf::from).collect()
}

fn queues_of_environment(values: &Values<'_>) -> Result<QueueLimits, BadValue> {
    let [queued, backlog] =
        [queues::DELAY_SCHEDULER, queues::BACKLOG_DELAY_SCHEDULER].map(|name| std::env::var(name).ok());
    queues::queues(values, queues::Delays { queued: queued.as_deref(), backlog: backlog.as_deref() })
}

fn grpc_tuning(values: &Values<'_>) -> Result<GrpcTuning, SettingsError> {
    let compression = values.text("grpc-infer-response-compression-level").unwrap_or("none").to_ascii_lowercase();
    if !matches!(compression.as_str(), "none" | "low" | "medium" | "high") {
        let text = "invalid argument for --grpc_infer_response_compression_level";
        return Err(bad("grpc-infer-response-compression-level", text).into());
    }
    if let Some(threads) = values.int_if_given::<i64>("grpc-infer-thread-count")?
        && !(2..=128).contains(&threads)
    {
        let text = "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128.";
        return Err(bad("grpc-infer-thread-count", text).into());
    }
    let responses_max = values.int("grpc-max-response-pool-size", i64::from(i32::MAX))?;
    let Some(responses_max) = usize::try_from(responses_max).ok().filter(|max| *max > 0) else {
        let text = "Error: --grpc-max-response-pool-size must be greater than 0.";
        return Err(bad("grpc-max-response-pool-size", text).into());
    };
    Ok(GrpcTuning {
        responses_max,
        keepalive_time_ms: values.int("grpc-keepalive-time", 7_200_000)?,
        keepalive_timeout_ms: values.int("grpc-keepalive-timeout", 20_000)?,
        max_age_ms: values.int_if_given("grpc-max-connection-age")?,
        max_age_grace_ms: values.int_if_given("grpc-max-connection-age-grace")?,
        compression,
    })
}

fn backend_config(values: &Values<'_>) -> Result<Vec<(String, String, String)>, BadValue> {
    const FLAG: &str = "backend-config";
    const FORMAT: &str = "<backend name>,<setting>=<value>";
    let read = |value: &str| {
        let (backend, setting) = value.split_once(',').unwrap_or(("", value));
        if value.starts_with(',') {
            let text = format!(
                "No backend specified. --{FLAG} option format is <backend name>,<setting>=<value> or <setting>=<value>. Got {value}"
            );
            return Err(bad(FLAG, text));
        }
        let wrong = || crate::flags::BadValue {
            flag: FLAG,
            reason: format!("--{FLAG} option format is '{FORMAT}'. Got {value}"),
        };
        let (key, value) = sides(setting, '=').ok_or_else(wrong)?;
        // If a model failed because of it, its error would not name the flag.
        if key == nerite_isolated::SETTING && matches!(backend, "" | "onnxruntime") {
            let refused = |allowed| bad(FLAG, format!("'{key}' is '{value}'; {allowed}"));
            nerite_isolated::check_setting(value).map_err(refused)?;
        }
        Ok((backend.to_owned(), key.to_owned(), value.to_owned()))
    };
    values.all(FLAG).map(read).collect()
}

fn notes(given: &[Given]) -> Vec<String> {
    let mut notes = Vec::new();
    let has = |name: &str| given.iter().any(|given| given.flag.name == name);
    for given in given {
        let name = given.flag.name;
        match given.flag.honour {
            _ if name == "strict-model-config" => notes.push(
                "Warning: '--strict-model-config' has been deprecated! Please use '--disable-auto-complete-config' instead."
                    .into(),
            ),
            _ if name.strip_suffix("-mode").is_some_and(|of| of.ends_with("-socket") && !has(of)) => {
                notes.push(format!("--{name} has no effect without --{}", name.trim_end_matches("-mode")));
            }
            Honour::Accepted => notes.extend(accepted::note(given)),
            Honour::Yes | Honour::Own => {}
        }
    }
    // A flag may be given several times.
    let mut known = HashSet::new();
    notes.retain(|note| known.insert(note.clone()));
    notes
}

#[cfg(test)]
mod tests;
