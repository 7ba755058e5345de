//! Where does the server listen?

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use nerite_api::Api;
use nerite_http::{Endpoint, bind};

use super::StartError;
use crate::settings::{Front, GrpcTuning, Metrics, Settings};

/// The front ends at work.
pub struct Fronts {
    http: Option<nerite_http::Handle>,
    grpc: Option<nerite_grpc::Handle>,
    metrics: Option<nerite_metrics::Handle>,
    sessions: Option<nerite_session::Handle>,
}

impl Fronts {
    /// Stops accepting; resolves when the last request has been answered. Metrics are there to the end.
    pub async fn stop(&self) {
        // All are told before any is waited for.
        let sessions = self.sessions.as_ref().map(nerite_session::Handle::stop);
        let http = self.http.as_ref().map(nerite_http::Handle::stop);
        let grpc = self.grpc.as_ref().map(nerite_grpc::Handle::stop);
        if let Some(http) = http {
            http.await;
        }
        if let Some(grpc) = grpc {
            grpc.await;
        }
        if let Some(sessions) = sessions {
            sessions.await;
        }
        if let Some(metrics) = &self.metrics {
            metrics.stop().await;
        }
    }
}

/// Opens all ports and sockets. Nothing listens before the models are loaded.
pub fn start(api: &Api, settings: &Settings) -> Result<Fronts, StartError> {
    let grpc = settings.grpc.as_ref().map(|front| start_grpc(api, front, &settings.grpc_tuning)).transpose()?;
    let http = settings.http.as_ref().map(|front| start_http(api, front)).transpose()?;
    let metrics = settings.metrics.as_ref().map(|metrics| start_metrics(api, metrics)).transpose()?;
    let sessions = super::sessions::start(api, &settings.sessions)?;
    Ok(Fronts { http, grpc, metrics, sessions })
}

fn start_http(api: &Api, front: &Front) -> Result<nerite_http::Handle, StartError> {
    let Front { address, port, reuse_port, socket, .. } = front;
    let tcp = Endpoint::Tcp { address: address.clone(), port: *port, reuse_port: *reuse_port };
    let mut listeners = vec![bind(&tcp).map_err(|error| not_started("HTTP", &error))?];
    if let Some(path) = socket {
        listeners.push(bind(&Endpoint::Unix(path.clone())).map_err(|error| not_started("HTTP", &error))?);
    }
    let handle = nerite_http::serve(api.clone(), listeners);
    log::info!("Started HTTPService at {address}:{port}");
    Ok(handle)
}

fn start_metrics(api: &Api, metrics: &Metrics) -> Result<nerite_metrics::Handle, StartError> {
    let Metrics { address, port, .. } = metrics;
    let listener = nerite_metrics::bind(address, *port).map_err(|error| taken("Metrics", address, *port, &error))?;
    let handle = nerite_metrics::serve(api.clone(), listener);
    log::info!("Started Metrics Service at {address}:{port}");
    Ok(handle)
}

fn not_started(service: &str, error: &dyn std::fmt::Display) -> StartError {
    StartError(format!("failed to start {service} service: Unavailable - {error}"))
}

fn start_grpc(api: &Api, front: &Front, tuning: &GrpcTuning) -> Result<nerite_grpc::Handle, StartError> {
    let address = resolve("GRPC", front)?;
    let tcp = nerite_grpc::Listener::tcp(address, front.reuse_port)
        .map_err(|error| taken("GRPC", &front.address, front.port, &error))?;
    // The Unix socket stays plain: its file's permissions say who may open it.
    let mut listeners = vec![match &tuning.tls {
        None => tcp,
        Some(files) => {
            let tls = nerite_grpc::Tls::from_files(&files.cert, &files.key, files.client_roots.as_deref());
            tcp.secured(tls.map_err(|error| not_started("GRPC", &error))?)
        }
    }];
    if let Some(path) = &front.socket {
        listeners.push(nerite_grpc::Listener::unix(path).map_err(|error| no_socket("GRPC", path, &error))?);
    }
    let handle = nerite_grpc::serve(api.clone(), grpc_options(tuning), listeners);
    log::info!("Started GRPCInferenceService at {}:{}", front.address, front.port);
    Ok(handle)
}

fn grpc_options(tuning: &GrpcTuning) -> nerite_grpc::Options {
    use nerite_grpc::CompressionLevel;
    nerite_grpc::Options {
        response_compression: match tuning.compression.as_str() {
            "low" => CompressionLevel::Low,
            "medium" => CompressionLevel::Medium,
            "high" => CompressionLevel::High,
            _ => CompressionLevel::None,
        },
        response_pool_max: tuning.responses_max,
        keepalive_time: Duration::from_millis(tuning.keepalive_time_ms),
        keepalive_timeout: Duration::from_millis(tuning.keepalive_timeout_ms),
        connection_age_max: tuning.max_age_ms.map(Duration::from_millis),
        connection_age_grace: tuning.max_age_grace_ms.map(Duration::from_millis),
    }
}

fn resolve(service: &str, front: &Front) -> Result<SocketAddr, StartError> {
    let found = (front.address.as_str(), front.port).to_socket_addrs().ok().and_then(|mut all| all.next());
    found.ok_or_else(|| {
        StartError(format!(
            "failed to start {service} service: Internal - '{}' is no address of this host",
            front.address
        ))
    })
}

fn taken(service: &str, address: &str, port: u16, error: &io::Error) -> StartError {
    // The blank at the end is Triton's; scripts compare whole lines.
    let reason = match error.kind() {
        io::ErrorKind::AddrInUse => format!("Socket '{address}:{port}' already in use "),
        _ => format!("Socket '{address}:{port}' cannot be opened: {error}"),
    };
    StartError(format!("failed to start {service} service: Unavailable - {reason}"))
}

fn no_socket(service: &str, path: &Path, error: &io::Error) -> StartError {
    StartError(format!("failed to start {service} service: Unavailable - Socket '{}': {error}", path.display()))
}
