//! How is the server called, apart from the requests that are measured?

use std::path::Path;

use nerite_client::blocking::{grpc, http};
use nerite_client::report::{ModelReport, StatisticsReport};
use nerite_client::{ClientOptions, Error, Request, Response, Tls};

use crate::options::{Options, Protocol, TlsFiles};
use crate::wire::Endpoint;

/// A client of the protocol under measurement. A session has its server's HTTP.
#[derive(Clone, Debug)]
pub(crate) enum Caller {
    Http(http::Client),
    Grpc(grpc::Client),
}

/// Calls the method of the same name of the client.
macro_rules! call {
    ($self:ident, $name:ident($($given:expr),*)) => {
        match $self {
            Caller::Http(client) => client.$name($($given),*),
            Caller::Grpc(client) => client.$name($($given),*),
        }
    };
}

impl Caller {
    pub(crate) fn new(options: &Options) -> Result<Caller, String> {
        let made = Caller::make(options);
        made.map_err(|error| error.to_string())
    }

    fn make(options: &Options) -> Result<Caller, Error> {
        let client_options = ClientOptions::default();
        let client_options = match certificates(options)? {
            Some(certificates) => client_options.tls(certificates),
            None => client_options,
        };
        let address = options.address();
        match options.protocol {
            Protocol::Http | Protocol::Session => {
                let client = http::Client::with_options(&address, &client_options)?;
                let mut headers = options.headers.iter();
                let client = headers.try_fold(client, |client, (name, value)| client.with_header(name, value))?;
                Ok(Caller::Http(client))
            }
            Protocol::Grpc => {
                let client = grpc::Client::with_options(&address, &client_options)?;
                let mut headers = options.headers.iter();
                let client = headers.try_fold(client, |client, (name, value)| client.with_header(name, value))?;
                Ok(Caller::Grpc(client))
            }
        }
    }

    /// Name and version of the server, and whether it has statistics.
    pub(crate) fn server(&self) -> Result<(String, bool), String> {
        let report = call!(self, server_metadata()).map_err(|error| error.to_string())?;
        let has_statistics = report.extensions.iter().any(|extension| extension == "statistics");
        Ok((format!("{} {}", report.name, report.version), has_statistics))
    }

    pub(crate) fn model_metadata(&self, model: &str, version: Option<u64>) -> Result<ModelReport, String> {
        call!(self, model_metadata(model, version)).map_err(|error| error.to_string())
    }

    pub(crate) fn infer(&self, request: &Request) -> Result<Response, String> {
        call!(self, infer(request)).map_err(|error| error.to_string())
    }

    pub(crate) fn statistics(&self, model: &str) -> Result<Vec<StatisticsReport>, String> {
        call!(self, statistics(Some(model))).map_err(|error| error.to_string())
    }

    pub(crate) fn register(&self, name: &str, key: &str, bytes: usize) -> Result<(), String> {
        call!(self, register_system_region(name, key, 0, bytes as u64)).map_err(|error| error.to_string())
    }

    pub(crate) fn unregister(&self, name: &str) -> Result<(), String> {
        call!(self, unregister_system_region(name)).map_err(|error| error.to_string())
    }

    pub(crate) fn register_cuda(&self, name: &str, handle: &[u8], device: u32, bytes: usize) -> Result<(), String> {
        call!(self, register_cuda_region(name, handle, device, bytes as u64)).map_err(|error| error.to_string())
    }

    pub(crate) fn unregister_cuda(&self, name: &str) -> Result<(), String> {
        call!(self, unregister_cuda_region(Some(name))).map_err(|error| error.to_string())
    }

    /// Changes the settings of traces for one model.
    pub(crate) fn trace(&self, model: &str, settings: &str) -> Result<(), String> {
        let Caller::Http(client) = self else { return Err("trace settings are set over HTTP: -i http".to_owned()) };
        client.update_trace_settings(Some(model), settings).map(drop).map_err(|error| error.to_string())
    }

    pub(crate) fn load_model(&self, model: &str, config: Option<&str>) -> Result<(), String> {
        call!(self, load_model(model, config)).map_err(|error| error.to_string())
    }

    pub(crate) fn session(&self) -> Result<Option<nerite_client::Session>, String> {
        call!(self, session()).map_err(|error| error.to_string())
    }
}

/// The certificates of the options. `None`: the system's.
fn certificates(options: &Options) -> Result<Option<Tls>, Error> {
    let TlsFiles { roots, certificate, key, .. } = &options.tls;
    if roots.is_none() && certificate.is_none() {
        return Ok(None);
    }
    let trusted = match roots {
        Some(roots) => Tls::with_roots_file(roots)?,
        None => Tls::with_system_roots()?,
    };
    let (Some(certificate), Some(key)) = (certificate, key) else { return Ok(Some(trusted)) };
    let read = |path: &Path| {
        let fault =
            |error: std::io::Error| Error::Endpoint { endpoint: path.display().to_string(), reason: error.to_string() };
        std::fs::read(path).map_err(fault)
    };
    trusted.identity_pem(&read(certificate)?, &read(key)?).map(Some)
}

/// Where the connections of the measurement lead.
pub(crate) fn endpoint(options: &Options) -> Result<Endpoint, String> {
    let address = options.load_address();
    if address.starts_with("unix:") {
        return Ok(Endpoint::plain(&address));
    }
    let (scheme, rest) = address.split_once("://").unwrap_or(("http", &address));
    let authority = rest.trim_end_matches('/').to_owned();
    if !matches!(scheme, "https" | "grpcs") {
        return Ok(Endpoint::Tcp { authority, tls: None });
    }
    let host = authority.rsplit_once(':').map_or(authority.as_str(), |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let protocol: &[u8] = if options.protocol == Protocol::Grpc { b"h2" } else { b"http/1.1" };
    let made = certificates(options).and_then(|given| given.map_or_else(Tls::with_system_roots, Ok));
    let config = made.and_then(|tls| tls.rustls_config(host, protocol)).map_err(|error| error.to_string())?;
    Ok(Endpoint::Tcp { authority, tls: Some(config) })
}
