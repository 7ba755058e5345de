//! Which value of a setting is in force?
//!
//! It is taken from the same [`Settings`] that a server starts with, so it is the one that holds whatever a default is said to be.

use std::path::Path;
use std::time::Duration;

use log::Level;
use nerite_api::{LogSwitches, ShmScope, ShmTrust, SpanConfig, TraceConfig};
use nerite_listen::{TimeLimits, TlsFiles};
use nerite_repository::ControlMode;
use nerite_request::SequenceScope;
use nerite_session::Location;

use crate::settings::{Connections, CudaLibrary, FrontEndSettings, Metrics, Models, SessionSocket, Settings};

/// What holds for one setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InForce {
    /// This value, as a command line has it.
    One(String),
    /// These values.
    List(Vec<String>),
    /// None, for this reason.
    Unset(&'static str),
}

use InForce::{List, One, Unset};

/// What the host decides, where the operator does not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Host {
    /// Cores that the server may use.
    pub(super) cores: usize,
    /// Files that it may open.
    pub(super) descriptors: u64,
}

impl Host {
    /// This host, for a server with this process's limits.
    pub(super) fn this() -> Host {
        Host { cores: crate::settings::cores(), descriptors: crate::descriptors::raise_limit() }
    }
}

/// The value of the setting of this name; `None` if it has no effect.
pub(super) fn of(settings: &Settings, host: Host, name: &str) -> Option<InForce> {
    general(settings, host, name)
        .or_else(|| log(settings, name))
        .or_else(|| models(&settings.models, name))
        .or_else(|| connections(&settings.connections, host, name))
        .or_else(|| front(settings.http.as_ref(), "HTTP is off", name.strip_prefix("http-")?))
        .or_else(|| front(settings.grpc.as_ref(), "gRPC is off", name.strip_prefix("grpc-")?))
        .or_else(|| port(settings, name))
        .or_else(|| grpc(settings, name))
        .or_else(|| metrics(settings.metrics.as_ref(), name))
        .or_else(|| page(settings, name))
        .or_else(|| memory(settings, name))
        .or_else(|| sessions(settings, name))
        .or_else(|| backends(settings, name))
        .or_else(|| tracing(&settings.trace, name))
}

/// What a value follows from, if the operator gave none and it is no fixed default.
pub(super) fn follows_from(name: &str) -> Option<&'static str> {
    Some(match name {
        "http-thread-count" => "the host: its cores",
        "connections-max" => "the host: its limit of open files",
        "memory-budget" => "the host: its memory, or that of the control group, or ulimit -v",
        "lease-max-bytes" => "the host: its memory, or that of the control group",
        "session-socket" => "the host: the user and XDG_RUNTIME_DIR",
        "onnxruntime-library" => "the host: the first library that is found, else the embedded engine",
        "connections-per-peer-max" => "connections-max",
        "memory-budget-per-peer" => "memory-budget",
        "memory-budget-per-connection" => "memory-budget-per-peer",
        "session-max-bytes" => "lease-max-bytes",
        "metrics-address" => "http-address",
        "allow-model-upload" => "model-control-mode",
        "ui" => "allow-metrics, ui-address and ui-port",
        "ui-address" => "ui-port",
        "ui-port" => "ui-address",
        _ => return None,
    })
}

fn one(value: impl ToString) -> InForce {
    One(value.to_string())
}

fn path(path: Option<&Path>, otherwise: &'static str) -> InForce {
    path.map_or(Unset(otherwise), |path| one(path.display()))
}

fn text(text: &str, otherwise: &'static str) -> InForce {
    if text.is_empty() { Unset(otherwise) } else { one(text) }
}

fn number(number: Option<impl ToString>, otherwise: &'static str) -> InForce {
    number.map_or(Unset(otherwise), one)
}

/// A time limit in seconds; 0 for none.
fn seconds(limit: Option<Duration>) -> InForce {
    one(limit.unwrap_or_default().as_secs_f64())
}

fn general(settings: &Settings, host: Host, name: &str) -> Option<InForce> {
    Some(match name {
        "id" => one(&settings.id),
        "exit-timeout-secs" => one(settings.exit_timeout_secs),
        "drain-seconds" => one(settings.drain_seconds),
        "parent-pid" => number(settings.parent_pid, "the server does not end with another process"),
        "exit-on-error" => one(settings.exit_on_error),
        "strict-readiness" => one(settings.strict_readiness),
        "access-tokens-file" => path(settings.tokens_file.as_deref(), "no token is asked for"),
        "http-thread-count" => one(settings.front_threads(host.cores)),
        "http-max-input-size" => one(settings.http_input_bytes_max),
        "allow-http" => one(has_port(settings.http.as_ref())),
        "allow-grpc" => one(has_port(settings.grpc.as_ref())),
        "allow-metrics" => one(settings.metrics.is_some()),
        "http-allowed-origins" => List(settings.allowed.origins.clone()),
        "http-allowed-hosts" => List(settings.allowed.hosts.clone()),
        "trusted-proxies" => List(settings.trusted_proxies.subnets().iter().map(ToString::to_string).collect()),
        // Their values are only those that were given; some are secret.
        "http-restricted-api" | "grpc-restricted-protocol" | "rate-limit-resource" | "host-policy" => List(vec![]),
        "rate-limit" => one(if settings.rates.is_some() { "execution_count" } else { "off" }),
        "cache-config" => settings
            .response_cache
            .map_or(Unset("there is no response cache"), |bytes| List(vec![format!("local,size={bytes}")])),
        "response-cache-byte-size" => number(settings.response_cache, "there is no response cache"),
        _ => return None,
    })
}

fn log(settings: &Settings, name: &str) -> Option<InForce> {
    let log = &settings.log;
    Some(match name {
        "log-verbose" => one(log.verbose_level),
        "log-info" => one(log.info),
        "log-warning" => one(log.warning),
        "log-error" => one(log.error),
        "log-format" => one(&log.format),
        // Lines of requests are written with those of the most verbose level too.
        "log-access" => one(settings.log_access || LogSwitches::new(log.clone()).shows(Level::Trace)),
        "log-access-health" => one(settings.log_access_health),
        "log-file" => text(&log.file, "lines go to the standard output and the standard error"),
        _ => return None,
    })
}

fn models(models: &Models, name: &str) -> Option<InForce> {
    Some(match name {
        "model-repository" | "model-store" => {
            List(models.repositories.iter().map(|path| path.display().to_string()).collect())
        }
        "disable-auto-complete-config" | "strict-model-config" => one(!models.auto_complete),
        "model-control-mode" => one(match models.control {
            ControlMode::None => "none",
            ControlMode::Poll => "poll",
            ControlMode::Explicit => "explicit",
            ControlMode::Demand => "demand",
        }),
        "repository-poll-secs" => one(models.poll.as_secs()),
        "load-model" => List(models.load.clone()),
        "models-max-bytes" => number(models.bytes_max, "there is no limit"),
        "allow-model-upload" => one(models.allow_upload),
        "client-instances-max" => one(models.client_instances_max),
        "model-config-name" => text(&models.config_name, "config.pbtxt is read"),
        "model-load-thread-count" => one(models.load_threads),
        "model-load-retry-count" => one(models.load_retries),
        "queue-requests-max" => one(models.queues.requests_max),
        "model-namespacing" => one(models.namespacing),
        _ => return None,
    })
}

fn connections(connections: &Connections, host: Host, name: &str) -> Option<InForce> {
    let limits = connections.limits(host.descriptors);
    let TimeLimits { head, idle, body, write } = connections.http;
    Some(match name {
        "connections-max" => one(limits.all_max),
        "connections-per-peer-max" => one(limits.per_peer_max),
        "http-header-timeout" => seconds(head),
        "http-idle-timeout" => seconds(idle),
        "grpc-idle-timeout" => seconds(connections.grpc.idle),
        "http-handshake-timeout" => seconds(connections.http_handshake),
        "grpc-handshake-timeout" => seconds(connections.grpc_handshake),
        "body-progress-timeout" => seconds(body),
        "write-timeout" => seconds(write),
        _ => return None,
    })
}

fn has_port(front: Option<&FrontEndSettings>) -> bool {
    front.is_some_and(|front| front.port.is_some())
}

/// A setting of HTTP or gRPC, without its prefix.
fn front(front: Option<&FrontEndSettings>, is_off: &'static str, name: &str) -> Option<InForce> {
    let value = |read: fn(&FrontEndSettings) -> InForce| Some(front.map_or(Unset(is_off), read));
    const NO_PORT: &str = "there is a Unix socket and no port";
    match name {
        "address" => value(|front| front.port.map_or(Unset(NO_PORT), |_| one(&front.address))),
        "port" => value(|front| number(front.port, NO_PORT)),
        "socket" => value(|front| path(front.socket.as_deref(), "there is no Unix socket")),
        "socket-mode" => value(|front| one(format!("{:04o}", front.socket_mode))),
        "header-forward-pattern" => value(|front| {
            front.forward.as_ref().map_or(Unset("no header becomes a parameter"), |regex| one(regex.as_str()))
        }),
        _ => tls(front.and_then(|front| front.tls.as_ref()), name),
    }
}

/// The settings of ports whose names do not begin with their protocol.
fn port(settings: &Settings, name: &str) -> Option<InForce> {
    let (front, is_off) = match name {
        "reuse-http-port" => (settings.http.as_ref(), "HTTP is off"),
        "reuse-grpc-port" => (settings.grpc.as_ref(), "gRPC is off"),
        _ => return None,
    };
    Some(front.map_or(Unset(is_off), |front| one(front.reuse_port)))
}

/// A file or a switch of TLS, without the prefix of its port. `use-ssl-mutual` implies `use-ssl`.
fn tls(files: Option<&TlsFiles>, name: &str) -> Option<InForce> {
    const PLAIN: &str = "the port does not use TLS";
    let roots = files.and_then(|files| files.client_roots.as_deref());
    Some(match name {
        "use-ssl" => one(files.is_some()),
        "use-ssl-mutual" => one(roots.is_some()),
        "server-cert" => path(files.map(|files| files.certificate.as_path()), PLAIN),
        "server-key" => path(files.map(|files| files.key.as_path()), PLAIN),
        "root-cert" => path(roots, "clients are not asked for a certificate"),
        _ => return None,
    })
}

fn grpc(settings: &Settings, name: &str) -> Option<InForce> {
    let tuning = &settings.grpc_tuning;
    Some(match name {
        "grpc-max-response-pool-size" => one(tuning.responses_max),
        "grpc-infer-response-compression-level" => one(&tuning.compression),
        "grpc-keepalive-time" => one(tuning.keepalive_time_ms),
        "grpc-keepalive-timeout" => one(tuning.keepalive_timeout_ms),
        "grpc-max-connection-age" => number(tuning.max_age_ms, "connections may have any age"),
        "grpc-max-connection-age-grace" => {
            number(tuning.max_age_grace_ms, "calls of old connections may take any time")
        }
        _ => return None,
    })
}

fn metrics(metrics: Option<&Metrics>, name: &str) -> Option<InForce> {
    let value = |read: fn(&Metrics) -> InForce| Some(metrics.map_or(Unset("metrics are off"), read));
    match name {
        "metrics-address" => value(|metrics| one(&metrics.address)),
        "metrics-port" => value(|metrics| one(metrics.port)),
        "allow-gpu-metrics" => value(|metrics| one(metrics.gpu)),
        "allow-cpu-metrics" => value(|metrics| one(metrics.cpu)),
        "metrics-interval-ms" => value(|metrics| one(metrics.interval_ms)),
        "metrics-config" => value(|metrics| List(metrics_config(metrics))),
        _ => None,
    }
}

fn metrics_config(metrics: &Metrics) -> Vec<String> {
    let quantiles = metrics.latencies.quantiles.as_deref();
    let mut config = vec![
        format!("counter_latencies={}", metrics.counter_latencies),
        format!("summary_latencies={}", quantiles.is_some()),
        format!("histogram_latencies={}", metrics.latencies.first_response),
    ];
    if let Some(quantiles) = quantiles {
        // All are equally exact, so the allowed error has no effect.
        let pairs: Vec<String> = quantiles.iter().map(|quantile| format!("{quantile}:0")).collect();
        config.push(format!("summary_quantiles={}", pairs.join(",")));
    }
    config
}

fn page(settings: &Settings, name: &str) -> Option<InForce> {
    let own = settings.ui.as_ref().and_then(|ui| ui.own_port.as_ref());
    let none = if settings.ui.is_some() { "the page is at the metrics port" } else { "the page is off" };
    Some(match name {
        "ui" => one(settings.ui.is_some()),
        "ui-address" => own.map_or(Unset(none), |(address, _)| one(address)),
        "ui-port" => own.map_or(Unset(none), |(_, port)| one(port)),
        "ui-host" => List(settings.ui.as_ref().map(|ui| ui.hosts.clone()).unwrap_or_default()),
        // With a port of its own the page takes the files of the metrics port, even if that is off.
        _ => {
            let metrics = settings.metrics.as_ref().and_then(|metrics| metrics.tls.as_ref());
            let page = settings.ui.as_ref().and_then(|ui| ui.own_tls.as_ref());
            return tls(metrics.or(page), name.strip_prefix("metrics-")?);
        }
    })
}

fn memory(settings: &Settings, name: &str) -> Option<InForce> {
    let (budgets, regions) = (&settings.budgets, &settings.regions);
    Some(match name {
        "memory-budget" => one(budgets.all.high),
        "memory-budget-per-peer" => one(budgets.peer.high),
        "memory-budget-per-connection" => one(budgets.connection.high),
        "shm-trust" => one(match regions.trust {
            ShmTrust::Peer => "peer",
            ShmTrust::Any => "any",
        }),
        "shm-key-prefix" => List(regions.key_prefixes.clone()),
        "shm-scope" => one(match regions.scope {
            ShmScope::Own => "own",
            ShmScope::All => "all",
        }),
        "sequence-scope" => one(match settings.sequence_scope {
            SequenceScope::User => "user",
            SequenceScope::Peer => "peer",
            SequenceScope::All => "all",
        }),
        "allow-client-shm" => one(settings.allow_client_shm),
        _ => return None,
    })
}

fn sessions(settings: &Settings, name: &str) -> Option<InForce> {
    let sessions = &settings.sessions;
    Some(match name {
        "session-socket" => match &sessions.socket {
            SessionSocket::Default => one(Location::default_of_user().path().display()),
            SessionSocket::At(path) => one(path.display()),
            SessionSocket::Off => one("off"),
        },
        "session-allow-uid" => List(sessions.allow_uids.iter().map(u32::to_string).collect()),
        "sessions-per-user-max" => one(sessions.per_user_max),
        "session-hello-timeout" => seconds(sessions.hello_within),
        "lease-max-bytes" => one(sessions.limits.bytes_max),
        "session-max-bytes" => one(sessions.limits.session_bytes_max),
        _ => return None,
    })
}

fn backends(settings: &Settings, name: &str) -> Option<InForce> {
    let (gpu, none) = (&settings.gpu, Path::new("none"));
    Some(match name {
        "cuda-library" => match &gpu.library {
            CudaLibrary::Default => Unset("the driver of the host is used, if it has one"),
            CudaLibrary::At(path) => one(path.display()),
            CudaLibrary::Off => one("none"),
        },
        "pinned-memory-pool-byte-size" => one(gpu.pinned_pool_bytes),
        "page-lock-client-memory" => one(gpu.lock_client_memory),
        "min-supported-compute-capability" => one(format!("{:?}", gpu.min_compute_capability)),
        "backend-directory" => path(
            settings.backend_directory.as_deref(),
            "backends of /opt/tritonserver/backends are used, and replace no built-in ones",
        ),
        "backend-config" => List(vec![]),
        "onnxruntime-library" => match settings.onnxruntime_library.as_deref() {
            Some(path) => one(path.display()),
            None => one(nerite_ort::find_library(None).as_deref().unwrap_or(none).display()),
        },
        _ => return None,
    })
}

fn tracing(trace: &TraceConfig, name: &str) -> Option<InForce> {
    const TO_COLLECTOR: &str = "spans go to a collector, and not to a file";
    Some(match name {
        "trace-config" => List(trace_config(trace)),
        "trace-level" => List(levels(trace).into_iter().map(str::to_owned).collect()),
        "trace-rate" => one(trace.rate),
        "trace-count" => one(trace.count),
        "trace-file" | "trace-log-frequency" if trace.spans.is_some() => Unset(TO_COLLECTOR),
        "trace-file" => text(&trace.file, "traces go to no file"),
        "trace-log-frequency" => one(trace.log_frequency),
        _ => return None,
    })
}

fn levels(trace: &TraceConfig) -> Vec<&'static str> {
    let all = [("TIMESTAMPS", trace.levels.timestamps), ("TENSORS", trace.levels.tensors)];
    let on: Vec<&str> = all.into_iter().filter(|(_, is_on)| *is_on).map(|(name, _)| name).collect();
    if on.is_empty() { vec!["OFF"] } else { on }
}

/// The values of `--trace-config`. An address of a collector with a password, and the headers that variables of OpenTelemetry add, are left out.
fn trace_config(trace: &TraceConfig) -> Vec<String> {
    let mut config: Vec<String> = levels(trace).iter().map(|level| format!("level={level}")).collect();
    config.extend([format!("rate={}", trace.rate), format!("count={}", trace.count)]);
    if let Some(SpanConfig { url, resource, queue_max, delay_ms, batch_max, .. }) = &trace.spans {
        config.push("mode=opentelemetry".to_owned());
        config.extend((!url.contains('@')).then(|| format!("opentelemetry,url={url}")));
        config.extend(resource.iter().map(|(name, value)| format!("opentelemetry,resource={name}={value}")));
        config.push(format!("opentelemetry,bsp_max_queue_size={queue_max}"));
        config.push(format!("opentelemetry,bsp_schedule_delay={delay_ms}"));
        config.push(format!("opentelemetry,bsp_max_export_batch_size={batch_max}"));
        return config;
    }
    config.push("mode=triton".to_owned());
    config.extend((!trace.file.is_empty()).then(|| format!("triton,file={}", trace.file)));
    config.push(format!("triton,log-frequency={}", trace.log_frequency));
    config
}
