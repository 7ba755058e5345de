//! Where does the server listen?

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nerite_api::{Api, WebSites};
use nerite_listen::{
    ApplicationProtocol, BindError, ConnectionRules, Cut, Endpoint, Listener, NamedService, Peers, Proxies, Service,
    Tls, TlsFiles, bind, close_all,
};
use nerite_page::Page;
use tokio::time::timeout;

use super::StartError;
use crate::settings::{Allowed, Connections, FrontEndSettings, GrpcTuning, Metrics, Settings, Ui};

/// The front ends at work.
pub struct Fronts {
    http: Option<nerite_http::Handle>,
    grpc: Option<nerite_grpc::Handle>,
    metrics: Option<nerite_metrics::Handle>,
    page: Option<nerite_metrics::Handle>,
    sessions: Option<nerite_session::Handle>,
}

impl Fronts {
    /// Begins to end the connections of HTTP and gRPC without losing a request. New ones are accepted.
    pub fn drain(&self) {
        self.of_requests().for_each(|service| service.drain());
    }

    /// Closes the listeners of HTTP and gRPC, and waits until each connection has ended after a request, at most for `within`.
    pub async fn close_listeners(&self, within: Duration) {
        let ends: Vec<_> = self.of_requests().map(|service| service.close_listeners()).collect();
        let ended = async {
            for end in ends {
                end.await;
            }
        };
        // Connections without a request are left. They end at the stop.
        let _ = timeout(within, ended).await;
    }

    fn of_requests(&self) -> impl Iterator<Item = Service> {
        let http = self.http.as_ref().map(nerite_http::Handle::service);
        http.into_iter().chain(self.grpc.as_ref().map(nerite_grpc::Handle::service))
    }

    /// Stops accepting connections. Resolves when all complete requests are answered, and each client has read its answer or stopped reading it; at
    /// the latest at the deadline. Metrics are served until the end. Returns what was cut at the deadline.
    pub async fn stop(&self, deadline: Instant) -> Vec<Cut> {
        let named = |name, service: Option<Service>| service.map(|service| NamedService { name, service });
        let first = [
            named("sessions", self.sessions.as_ref().map(nerite_session::Handle::service)),
            named("HTTP", self.http.as_ref().map(nerite_http::Handle::service)),
            named("GRPC", self.grpc.as_ref().map(nerite_grpc::Handle::service)),
        ];
        let last = [
            named("Metrics", self.metrics.as_ref().map(nerite_metrics::Handle::service)),
            named("Page", self.page.as_ref().map(nerite_metrics::Handle::service)),
        ];
        let [first, last] = [&first[..], &last].map(|these| these.iter().flatten().cloned().collect::<Vec<_>>());
        close_all(&first, &last, deadline.into()).await
    }
}

/// The certificates of the ports.
pub struct Certificates {
    http: Option<Tls>,
    grpc: Option<Tls>,
    metrics: Option<Tls>,
    page: Option<Tls>,
}

impl Certificates {
    /// Those that there are, by the names of their ports.
    fn by_port(&self) -> Vec<(&'static str, Tls)> {
        let Certificates { http, grpc, metrics, page } = self;
        let all = [("http", http), ("grpc", grpc), ("metrics", metrics), ("page", page)];
        all.into_iter().filter_map(|(port, tls)| Some((port, tls.clone()?))).collect()
    }
}

/// Reads the certificates, if the operator set any. Called before models are loaded, because loading may take long and a fault should be reported
/// first.
pub fn read_certificates(settings: &Settings) -> Result<Certificates, StartError> {
    let read = |service, files: Option<TlsFiles>, protocol| {
        let tls = files.map(|files| Tls::from_files(files, protocol)).transpose();
        tls.map_err(|error| not_started(service, &error))
    };
    let of_front = |front: &Option<FrontEndSettings>| front.as_ref().and_then(|front| front.tls.clone());
    let of_metrics = settings.metrics.as_ref().and_then(|metrics| metrics.tls.clone());
    let of_page = settings.ui.as_ref().and_then(|ui| ui.own_tls.clone());
    Ok(Certificates {
        http: read("HTTP", of_front(&settings.http), ApplicationProtocol::Http1)?,
        grpc: read("GRPC", of_front(&settings.grpc), ApplicationProtocol::Http2)?,
        metrics: read("Metrics", of_metrics, ApplicationProtocol::Http1)?,
        page: read("Page", of_page, ApplicationProtocol::Http1)?,
    })
}

/// Opens all ports and sockets. Nothing listens before the models are loaded. Nothing answers before everything listens, so a client that gets an
/// answer from one of them can use all.
pub fn start(
    api: &Api,
    settings: &Settings,
    certificates: Certificates,
    peers: &Arc<Peers>,
) -> Result<Fronts, StartError> {
    let behind = |header_max| Proxies { trusted: settings.trusted_proxies.clone(), header_max };
    let grpc_proxies = behind(settings.connections.grpc_handshake);
    let grpc = settings.grpc.as_ref().map(|front| bind_front("GRPC", front, &grpc_proxies)).transpose()?;
    let http_proxies = behind(settings.connections.http_handshake);
    let http = settings.http.as_ref().map(|front| bind_front("HTTP", front, &http_proxies)).transpose()?;
    let at = |address: &str, port, service| bind_at(address, port).map_err(|error| not_started(service, &error));
    let metrics = settings.metrics.as_ref().map(|own| at(&own.address, own.port, "Metrics")).transpose()?;
    let page_port = settings.ui.as_ref().and_then(|ui| ui.own_port.as_ref());
    let page_port = page_port.map(|(address, port)| at(address, *port, "Page")).transpose()?;
    let http_port = http.iter().flatten().find_map(Listener::address).map(|address| address.port());
    let sessions = super::sessions::open(&settings.sessions, http_port)?;

    // The lines are logged in Triton's order, because scripts wait for the last one.
    let rules = |times| ConnectionRules { peers: Arc::clone(peers), times };
    let Connections { http: http_times, grpc: grpc_times, .. } = settings.connections;
    let shown = certificates.by_port();
    let grpc_options = nerite_grpc::Options {
        tls: certificates.grpc,
        handshake_max: settings.connections.grpc_handshake,
        ..grpc_options(&settings.grpc_tuning)
    };
    let grpc = settings.grpc.as_ref().zip(grpc);
    let grpc = grpc.map(|(front, at)| start_grpc(api, front, grpc_options, rules(grpc_times), at)).transpose()?;
    let sites = web_sites(&settings.allowed);
    let http_options = nerite_http::Options {
        tls: certificates.http,
        handshake_max: settings.connections.http_handshake,
        web_sites: sites.clone(),
    };
    let http = settings.http.as_ref().zip(http);
    let http = http.map(|(front, at)| start_http(api, front, http_options, rules(http_times), at)).transpose()?;
    let metrics = settings.metrics.as_ref().zip(metrics);
    // The page plots the metrics of its port, so the port has the names of the page.
    let page_sites = sites.with_hosts(settings.ui.as_ref().map_or(&[], |ui| &ui.hosts));
    let page = settings.ui.as_ref().map(|ui| Page::new(page_options(ui, &page_sites)));
    // The page is at one port: its own, if it has one.
    let beside = page.clone().filter(|_| page_port.is_none());
    let secured_by = |tls, web_sites| nerite_metrics::Options {
        tls,
        handshake_max: settings.connections.http_handshake,
        certificates: shown.clone(),
        web_sites,
    };
    let metrics_sites = if beside.is_some() { page_sites.clone() } else { sites };
    let metrics_options = secured_by(certificates.metrics, metrics_sites);
    let metrics = metrics
        .map(|(metrics, at)| start_metrics(api, metrics, metrics_options, rules(http_times), at, beside))
        .transpose()?;
    let own_page = settings.ui.as_ref().zip(page.clone()).zip(page_port);
    let own_options = secured_by(certificates.page, page_sites);
    let own_page =
        own_page.map(|((ui, page), at)| start_page(api, ui, own_options, rules(http_times), at, page)).transpose()?;
    let sessions = super::sessions::start(api, &settings.sessions, sessions);
    if let Some((page, sessions)) = page.zip(sessions.as_ref()) {
        page.show_sessions(sessions.inspector());
    }
    Ok(Fronts { http, grpc, metrics, page: own_page, sessions })
}

fn start_http(
    api: &Api,
    front: &FrontEndSettings,
    options: nerite_http::Options,
    rules: ConnectionRules,
    listeners: Vec<Listener>,
) -> Result<nerite_http::Handle, StartError> {
    let at = place(&front.address, front.port.unwrap_or_default(), listeners.first());
    let handle = nerite_http::serve(api.clone(), options, rules, listeners);
    let handle = handle.map_err(|error| not_started("HTTP", &error))?;
    log::info!("Started HTTPService at {at}");
    Ok(handle)
}

fn start_metrics(
    api: &Api,
    metrics: &Metrics,
    options: nerite_metrics::Options,
    rules: ConnectionRules,
    listener: Listener,
    page: Option<Page>,
) -> Result<nerite_metrics::Handle, StartError> {
    let at = place(&metrics.address, metrics.port, Some(&listener));
    let page_url = page.is_some().then(|| url(metrics.tls.is_some(), &metrics.address, metrics.port, &listener));
    let handle = nerite_metrics::serve(api.clone(), options, rules, listener, page.map(|page| Arc::new(page) as _));
    let handle = handle.map_err(|error| not_started("Metrics", &error))?;
    if let Some(page_url) = page_url {
        log::info!("Started the page for browsers of this host at {page_url}");
    }
    log::info!("Started Metrics Service at {at}");
    Ok(handle)
}

fn start_grpc(
    api: &Api,
    front: &FrontEndSettings,
    options: nerite_grpc::Options,
    rules: ConnectionRules,
    listeners: Vec<Listener>,
) -> Result<nerite_grpc::Handle, StartError> {
    let at = place(&front.address, front.port.unwrap_or_default(), listeners.first());
    let handle = nerite_grpc::serve(api.clone(), options, rules, listeners);
    let handle = handle.map_err(|error| not_started("GRPC", &error))?;
    log::info!("Started GRPCInferenceService at {at}");
    Ok(handle)
}

/// The port of a service, which is behind these proxies, and its Unix socket, or the one that it has.
fn bind_front(service: &str, front: &FrontEndSettings, proxies: &Proxies) -> Result<Vec<Listener>, StartError> {
    let FrontEndSettings { address, port, reuse_port, socket, socket_mode, .. } = front;
    let tcp = port.map(|port| Endpoint::Tcp { address: address.clone(), port, reuse_port: *reuse_port });
    let unix = socket.clone().map(|path| Endpoint::Unix { path, mode: *socket_mode, packets: false });
    let places = [tcp, unix];
    let bind = |place| match bind(place) {
        Ok(listener) => Ok(listener.behind(proxies.clone())),
        Err(error) => Err(not_started(service, &error)),
    };
    places.iter().flatten().map(bind).collect()
}

fn bind_at(address: &str, port: u16) -> Result<Listener, BindError> {
    bind(&Endpoint::Tcp { address: address.to_owned(), port, reuse_port: false })
}

/// The address as it was given, and the port that the listener has. They differ from the settings with port 0, where the system chooses one.
/// The path, if it is a Unix socket.
fn place(address: &str, port: u16, listener: Option<&Listener>) -> String {
    if let Some(file) = listener.and_then(Listener::file) {
        return format!("unix:{}", file.path().display());
    }
    let port = listener.and_then(Listener::address).map_or(port, |bound| bound.port());
    format!("{address}:{port}")
}

/// The URL of a listener for a browser on this host.
fn url(is_secured: bool, address: &str, port: u16, listener: &Listener) -> String {
    let scheme = if is_secured { "https" } else { "http" };
    let host = match address.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(ip) if ip.is_unspecified() => "localhost".to_owned(),
        Ok(IpAddr::V6(ip)) => format!("[{ip}]"),
        Ok(IpAddr::V4(_)) | Err(_) => address.to_owned(),
    };
    format!("{scheme}://{}/", place(&host, port, Some(listener)))
}

/// The page at its own port. The metrics that it plots are served there as well.
fn start_page(
    api: &Api,
    ui: &Ui,
    options: nerite_metrics::Options,
    rules: ConnectionRules,
    listener: Listener,
    page: Page,
) -> Result<nerite_metrics::Handle, StartError> {
    let at = ui.own_port.as_ref().map(|(address, port)| url(ui.own_tls.is_some(), address, *port, &listener));
    let handle = nerite_metrics::serve(api.clone(), options, rules, listener, Some(Arc::new(page)));
    let handle = handle.map_err(|error| not_started("Page", &error))?;
    if let Some(at) = at {
        log::info!("Started the page for browsers at {at}");
    }
    Ok(handle)
}

fn page_options(ui: &Ui, sites: &WebSites) -> nerite_page::Options {
    nerite_page::Options { callers: ui.callers, hosts: sites.hosts().clone() }
}

fn web_sites(allowed: &Allowed) -> WebSites {
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    WebSites::new(&allowed.hosts, allowed.origins.clone(), machine.as_deref())
}

fn not_started(service: &str, error: &dyn std::fmt::Display) -> StartError {
    StartError(format!("failed to start {service} service: Unavailable - {error}"))
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
        ..nerite_grpc::Options::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_the_port_of_the_listener_and_a_host_that_a_browser_can_ask() {
        let listener = bind_at("127.0.0.1", 0).expect("a free port");
        let port = listener.address().expect("it is TCP").port();
        for (is_secured, address, expect) in [
            (false, "0.0.0.0", format!("http://localhost:{port}/")),
            (true, "::", format!("https://localhost:{port}/")),
            (false, "10.0.0.7", format!("http://10.0.0.7:{port}/")),
            (false, "::1", format!("http://[::1]:{port}/")),
            (false, "example.net", format!("http://example.net:{port}/")),
        ] {
            assert_eq!(url(is_secured, address, 0, &listener), expect);
        }
    }
}
