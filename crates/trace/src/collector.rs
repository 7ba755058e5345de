//! How is a batch of spans posted to a collector?

mod tls;

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use http::uri::{Authority, PathAndQuery};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use nerite_wire::proto::otlp::ExportTraceServiceResponse;
use prost::Message;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::settings::SpanConfig;
use tls::Tls;

/// Bytes of an answer that are read. It only says how many spans were rejected, and why.
const ANSWER_BYTES_MAX: usize = 64 << 10;
const PROTOBUF: HeaderValue = HeaderValue::from_static("application/x-protobuf");
const AGENT: HeaderValue = HeaderValue::from_static(concat!("OTel-OTLP-Exporter-Nerite/", env!("CARGO_PKG_VERSION")));

/// A collector, and the connection to it.
pub(crate) struct Collector {
    url: String,
    host: String,
    port: u16,
    authority: Authority,
    path: PathAndQuery,
    headers: HeaderMap,
    /// `None` for `http://`.
    tls: Option<Tls>,
    connection: Option<SendRequest<Full<Bytes>>>,
}

/// The result of a post.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ExportResult {
    /// The collector accepted it, perhaps with a remark.
    Taken { remark: Option<String> },
    /// The collector will never accept it.
    Refused(String),
    /// The collector may accept it later.
    Later(String),
}

/// Why no spans can be sent to this collector, where that shows without asking it.
pub fn collector_fault(config: &SpanConfig) -> Option<String> {
    Collector::open(config).err()
}

impl Collector {
    /// Reads the settings. The Err says what is wrong with them.
    pub(crate) fn open(config: &SpanConfig) -> Result<Collector, String> {
        config.check()?;
        let Target { is_secret, host, port, authority, path } = target(&config.url)?;
        let mut headers = HeaderMap::new();
        for (name, value) in &config.headers {
            let header = name.parse::<HeaderName>().ok().zip(HeaderValue::from_str(value).ok());
            let (name, mut value) = header.ok_or_else(|| format!("'{name}' and its value are no HTTP header"))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let tls = is_secret.then(|| Tls::new(&host, &config.certificates)).transpose()?;
        Ok(Collector { url: config.url.clone(), host, port, authority, path, headers, tls, connection: None })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Posts a batch, within `patience`.
    pub(crate) async fn post(&mut self, body: Bytes, patience: Duration) -> ExportResult {
        match timeout(patience, self.exchange(body)).await {
            Ok(Ok((status, answer))) => read(status, &answer),
            Ok(Err(reason)) => self.give_up(reason),
            Err(_) => self.give_up(format!("no answer within {patience:?}")),
        }
    }

    /// Drops the connection, because the answer to the failed post may still arrive on it.
    fn give_up(&mut self, reason: String) -> ExportResult {
        self.connection = None;
        ExportResult::Later(reason)
    }

    async fn exchange(&mut self, body: Bytes) -> Result<(StatusCode, Bytes), String> {
        // The collector may have closed a connection that was idle.
        if let Some(connection) = self.connection.take()
            && let Ok(found) = self.send(connection, body.clone()).await
        {
            return Ok(found);
        }
        let connection = self.connect().await?;
        self.send(connection, body).await
    }

    async fn send(
        &mut self,
        mut connection: SendRequest<Full<Bytes>>,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), String> {
        connection.ready().await.map_err(text_of)?;
        let response = connection.send_request(self.request(body)).await.map_err(text_of)?;
        let status = response.status();
        let answer = whole(response).await;
        // If an answer is too long, the connection is dropped: the rest of the answer would be read as the next one.
        self.connection = answer.is_some().then_some(connection);
        Ok((status, answer.unwrap_or_default()))
    }

    fn request(&self, body: Bytes) -> Request<Full<Bytes>> {
        let length = HeaderValue::from(body.len());
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from(self.path.clone());
        let headers = request.headers_mut();
        headers.extend(self.headers.clone());
        headers.insert(CONTENT_TYPE, PROTOBUF);
        headers.insert(CONTENT_LENGTH, length);
        headers.insert(USER_AGENT, AGENT);
        if let Ok(host) = HeaderValue::from_str(self.authority.as_str()) {
            headers.insert(HOST, host);
        }
        request
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(text_of)?;
        match &self.tls {
            None => begin(stream).await,
            Some(tls) => begin(tls.over(stream).await?).await,
        }
    }
}

/// Begins to speak HTTP over this stream.
async fn begin<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, String>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(text_of)?;
    // The connection runs while a post is awaited. The sender notices when it ends.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

async fn whole(response: Response<Incoming>) -> Option<Bytes> {
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await.ok()?;
    Some(body.to_bytes())
}

fn text_of(error: impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// The result in an answer. If the body is invalid, the status decides.
fn read(status: StatusCode, answer: &[u8]) -> ExportResult {
    match status {
        _ if status.is_success() => {
            let partial = ExportTraceServiceResponse::decode(answer).ok().and_then(|answer| answer.partial_success);
            let partial = partial.filter(|part| part.rejected_spans > 0 || !part.error_message.is_empty());
            let remark = |part: nerite_wire::proto::otlp::ExportTracePartialSuccess| {
                format!("{} spans were rejected: {}", part.rejected_spans, part.error_message)
            };
            ExportResult::Taken { remark: partial.map(remark) }
        }
        // The statuses that OTLP names for a later attempt.
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => ExportResult::Later(format!("it answered {status}")),
        _ => ExportResult::Refused(format!("it answered {status}")),
    }
}

/// The server, path and scheme of a URL.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    is_secret: bool,
    host: String,
    port: u16,
    authority: Authority,
    path: PathAndQuery,
}

/// As in Triton, a URL without a scheme means `http`.
fn target(url: &str) -> Result<Target, String> {
    let full = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let wrong =
        |why: &str| format!("'{url}' is no URL of a collector: {why}; it looks like http://localhost:4318/v1/traces");
    let parts = full.parse::<Uri>().map_err(|error| wrong(&error.to_string()))?.into_parts();
    let is_secret = match parts.scheme.as_ref().map(http::uri::Scheme::as_str) {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(wrong("only http and https are spoken")),
    };
    let authority = parts.authority.ok_or_else(|| wrong("it has no host"))?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    if host.is_empty() {
        return Err(wrong("it has no host"));
    }
    let port = authority.port_u16().unwrap_or(if is_secret { 443 } else { 80 });
    let path = parts.path_and_query.unwrap_or_else(|| PathAndQuery::from_static("/"));
    Ok(Target { is_secret, host, port, authority, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(url: &str, expected: Result<(bool, &str, u16, &str), &str>) {
        let found = target(url);
        match (&found, expected) {
            (Ok(found), Ok(expected)) => {
                assert_eq!((found.is_secret, found.host.as_str(), found.port, found.path.as_str()), expected);
            }
            (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
            _ => panic!("{found:?}"),
        }
    }

    #[test]
    fn certificates_that_cannot_be_used_are_named_where_the_collector_has_tls() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("f").display().to_string();
        std::fs::write(&path, "nothing").expect("written");
        let fault = |url: &str, certificates: &str| {
            collector_fault(&SpanConfig { url: url.into(), certificates: certificates.into(), ..SpanConfig::default() })
        };
        let cure = "name the authority's in PEM by OTEL_EXPORTER_OTLP_CERTIFICATE";
        assert_eq!(fault("https://a", &path), Some(format!("certificates in '{path}': there is none; {cure}")));
        let missing = "certificates in '/nowhere/ca.pem': No such file or directory (os error 2)";
        assert_eq!(fault("https://a", "/nowhere/ca.pem"), Some(format!("{missing}; {cure}")));
        assert_eq!(fault("http://a", "/nowhere/ca.pem"), None, "they are not used");
    }

    #[test]
    fn a_url_leads_to_a_host_a_port_and_a_path() {
        check("http://localhost:4318/v1/traces", Ok((false, "localhost", 4318, "/v1/traces")));
        check("collector:4318/v1/traces?a=b", Ok((false, "collector", 4318, "/v1/traces?a=b")));
        check("collector", Ok((false, "collector", 80, "/")));
        check("https://[::1]/x", Ok((true, "::1", 443, "/x")));
        check("grpc://localhost:4317", Err("only http and https"));
        check("", Err("is no URL of a collector"));
        check("http://a b", Err("is no URL of a collector"));
    }

    #[test]
    fn the_status_of_an_answer_decides_and_its_body_may_remark() {
        let partial = nerite_wire::proto::otlp::ExportTracePartialSuccess {
            rejected_spans: 3,
            error_message: "too old".to_owned(),
        };
        let body = ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec();
        let remark = Some("3 spans were rejected: too old".to_owned());
        assert_eq!(read(StatusCode::OK, &body), ExportResult::Taken { remark });
        assert_eq!(read(StatusCode::OK, b"<html>nonsense"), ExportResult::Taken { remark: None });
        assert_eq!(read(StatusCode::ACCEPTED, b""), ExportResult::Taken { remark: None });
        assert!(matches!(read(StatusCode::SERVICE_UNAVAILABLE, b""), ExportResult::Later(_)));
        assert!(matches!(read(StatusCode::NOT_FOUND, b""), ExportResult::Refused(_)));
        assert!(matches!(read(StatusCode::FOUND, b""), ExportResult::Refused(_)));
    }
}
