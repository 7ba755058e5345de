//! How does a client call a server over HTTP?

mod body;
mod connection;
mod cuda;
mod read;
mod render;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use nerite_request::{Code, Status};

use self::connection::{Answer, Connections, JSON_LENGTH};
use self::render::Object;
pub(crate) use self::render::body_of;
use crate::connect::Connector;
use crate::pending_placement::PendingPlacement;
use crate::region::{Registers, Registration};
use crate::report::{self, IndexEntry, ModelReport, ServerReport, StatisticsReport, SystemRegionReport};
use crate::token::AUTHORIZATION;
use crate::trace::Trace;
use crate::{ClientOptions, Error, Registrar, Request, Response};

/// The name of the protocol in TLS (ALPN).
const PROTOCOL: &[u8] = b"http/1.1";

/// A client of the HTTP protocol. Cloning it is cheap and shares its connections. It connects at the first call.
///
/// ```no_run
/// use nerite_client::{Request, Tensor, http};
///
/// # async fn call() -> Result<(), nerite_client::Error> {
/// let client = http::Client::new("http://localhost:8000")?;
/// let ones = Tensor::from_slice("INPUT0", &[1, 16], &[1i32; 16])?;
/// let twos = Tensor::from_slice("INPUT1", &[1, 16], &[2i32; 16])?;
/// let response = client.infer(&Request::new("simple").input(ones).input(twos)).await?;
/// assert_eq!(response.output("OUTPUT0")?.as_slice::<i32>()?, [3; 16]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    connections: Arc<Connections>,
    headers: HeaderMap,
}

impl Client {
    /// A client of the server at `http://host:port`, `https://host:port` or `unix:/path`.
    pub fn new(endpoint: &str) -> Result<Client, Error> {
        Client::with_options(endpoint, &ClientOptions::default())
    }

    /// As [`Client::new`], with time limits, certificates and a token.
    pub fn with_options(endpoint: &str, options: &ClientOptions) -> Result<Client, Error> {
        let connections = Arc::new(Connections::new(Connector::new(endpoint, options, PROTOCOL)?));
        let client = Client { connections, headers: HeaderMap::new() };
        match options.token.bearer() {
            Some(bearer) => client.with_header(AUTHORIZATION, &bearer),
            None => Ok(client),
        }
    }

    /// Adds a header that the client sends with every request, such as the key of a restricted call. The header `authorization` replaces the token of the
    /// options.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<Client, Error> {
        let fault = |reason: String| Error::Endpoint { endpoint: format!("header {name}"), reason };
        let key = HeaderName::try_from(name).map_err(|reason| fault(reason.to_string()))?;
        let mut value = HeaderValue::from_str(value).map_err(|reason| fault(reason.to_string()))?;
        // The debug output of the client must not show the value.
        value.set_sensitive(true);
        if key == AUTHORIZATION {
            self.headers.remove(AUTHORIZATION);
        }
        self.headers.append(key, value);
        Ok(self)
    }

    /// The port of the server, if it has one.
    pub(crate) fn port(&self) -> Option<u16> {
        self.connections.endpoint().port()
    }

    /// The header `authorization` that the client sends.
    pub(crate) fn authorization(&self) -> Option<&str> {
        self.headers.get(AUTHORIZATION)?.to_str().ok()
    }

    /// Whether the server runs.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client) -> Result<(), nerite_client::Error> {
    /// assert!(client.is_live().await?);
    /// # Ok(()) }
    /// ```
    pub async fn is_live(&self) -> Result<bool, Error> {
        self.holds("/v2/health/live").await
    }

    /// Whether the server takes inference requests.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client) -> Result<(), nerite_client::Error> {
    /// while !client.is_ready().await? {}
    /// # Ok(()) }
    /// ```
    pub async fn is_ready(&self) -> Result<bool, Error> {
        Ok(self.readiness().await?.is_ok())
    }

    /// As [`Client::is_ready`]. The inner error says why the server is not ready, as far as it tells: which model is missing.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client) -> Result<(), nerite_client::Error> {
    /// if let Err(why) = client.readiness().await? {
    ///     println!("{}", why.message);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn readiness(&self) -> Result<Result<(), Status>, Error> {
        self.check("/v2/health/ready").await
    }

    /// Whether a model, or one version of it, takes requests.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client) -> Result<(), nerite_client::Error> {
    /// assert!(client.is_model_ready("simple", None).await?);
    /// # Ok(()) }
    /// ```
    pub async fn is_model_ready(&self, model: &str, version: Option<u64>) -> Result<bool, Error> {
        self.holds(&format!("{}/ready", model_path(model, version))).await
    }

    /// The server's name, version and extensions.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client) -> Result<(), nerite_client::Error> {
    /// println!("{}", client.server_metadata().await?.version);
    /// # Ok(()) }
    /// ```
    pub async fn server_metadata(&self) -> Result<ServerReport, Error> {
        Ok(report::server(&report::parse(&self.get("/v2").await?.json)?))
    }

    /// A model's versions and tensors.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client) -> Result<(), nerite_client::Error> {
    /// for input in client.model_metadata("simple", None).await?.inputs {
    ///     println!("{} {} {:?}", input.name, input.datatype, input.shape);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn model_metadata(&self, model: &str, version: Option<u64>) -> Result<ModelReport, Error> {
        report::model(&report::parse(&self.get(&model_path(model, version)).await?.json)?)
    }

    /// A model's configuration, as the server completed it, in JSON.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client) -> Result<(), nerite_client::Error> {
    /// println!("{}", client.model_config("simple", None).await?);
    /// # Ok(()) }
    /// ```
    pub async fn model_config(&self, model: &str, version: Option<u64>) -> Result<String, Error> {
        into_text(self.get(&format!("{}/config", model_path(model, version))).await?)
    }

    /// Runs one inference. Inline tensors are sent without a copy. Tensors in regions are not sent.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client) -> Result<(), nerite_client::Error> {
    /// use nerite_client::{DataType, Region, Request};
    ///
    /// let region = Region::create("/sums", 256)?;
    /// region.write(0, &[1i32; 16])?;
    /// region.write(64, &[2i32; 16])?;
    /// let region = region.register(&client, "sums").await?;
    /// let request = Request::new("simple")
    ///     .input_in_region("INPUT0", DataType::Int32, &[1, 16], &region, 0)?
    ///     .input_in_region("INPUT1", DataType::Int32, &[1, 16], &region, 64)?
    ///     .output_in_region("OUTPUT0", &region, 128, 64);
    /// client.infer(&request).await?;
    /// assert_eq!(region.view::<i32>(128, 16)?.to_vec(), [3; 16]);
    /// # region.unregister().await }
    /// ```
    pub async fn infer(&self, request: &Request) -> Result<Response, Error> {
        let placement = PendingPlacement::of(request);
        let (json, tensors) = render::infer(request, placement.as_ref().map(PendingPlacement::key));
        let mut headers = self.headers.clone();
        if !tensors.is_empty() {
            headers.insert(HeaderName::from_static(JSON_LENGTH), HeaderValue::from(json.len()));
        }
        for (name, value) in request.trace().into_iter().flat_map(Trace::headers) {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
        let mut path = escaped(&request.model, "/v2/models/");
        if !request.version.is_empty() {
            path = escaped(&request.version, &format!("{path}/versions/"));
        }
        let pieces = std::iter::once(Bytes::from(json)).chain(tensors).collect();
        let answer = self.connections.exchange(Method::POST, &format!("{path}/infer"), &headers, pieces).await?;
        let mut response = read::infer(&read::accepted(answer)?)?;
        if let Some(placement) = placement {
            placement.settle(&mut response).await?;
            placement.end();
        }
        Ok(response)
    }

    /// The models of the repositories. With `ready`, only those that take requests.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client) -> Result<(), nerite_client::Error> {
    /// for entry in client.repository_index(false).await? {
    ///     println!("{} {} {}", entry.name, entry.state, entry.reason);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn repository_index(&self, ready: bool) -> Result<Vec<IndexEntry>, Error> {
        let answer = self.post("/v2/repository/index", format!("{{\"ready\":{ready}}}")).await?;
        Ok(report::index(&report::parse(&answer.json)?))
    }

    /// Loads a model, or reloads it. `config` replaces its configuration, in JSON.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client) -> Result<(), nerite_client::Error> {
    /// client.load_model("simple", None).await?;
    /// # Ok(()) }
    /// ```
    pub async fn load_model(&self, model: &str, config: Option<&str>) -> Result<(), Error> {
        let mut parameters = Object::new();
        if let Some(config) = config {
            parameters.key("config").text(config);
        }
        let path = format!("{}/load", escaped(model, "/v2/repository/models/"));
        self.post(&path, format!("{{\"parameters\":{}}}", parameters.close())).await.map(|_| ())
    }

    /// Unloads a model. With `dependents`, also the models that an ensemble uses.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client) -> Result<(), nerite_client::Error> {
    /// client.unload_model("simple", false).await?;
    /// # Ok(()) }
    /// ```
    pub async fn unload_model(&self, model: &str, dependents: bool) -> Result<(), Error> {
        let path = format!("{}/unload", escaped(model, "/v2/repository/models/"));
        let body = format!("{{\"parameters\":{{\"unload_dependents\":{dependents}}}}}");
        self.post(&path, body).await.map(|_| ())
    }

    /// The inference statistics so far, of one model or of all.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client) -> Result<(), nerite_client::Error> {
    /// println!("{}", client.statistics(Some("simple")).await?[0].inference_count);
    /// # Ok(()) }
    /// ```
    pub async fn statistics(&self, model: Option<&str>) -> Result<Vec<StatisticsReport>, Error> {
        let path = match model {
            Some(model) => format!("{}/stats", model_path(model, None)),
            None => "/v2/models/stats".to_owned(),
        };
        report::statistics(&report::parse(&self.get(&path).await?.json)?)
    }

    /// The system shared memory regions that are registered: all, or the one with this name.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client) -> Result<(), nerite_client::Error> {
    /// for region in client.system_regions(None).await? {
    ///     println!("{} is {} bytes of {}", region.name, region.byte_size, region.key);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn system_regions(&self, name: Option<&str>) -> Result<Vec<SystemRegionReport>, Error> {
        let path = format!("{}/status", region_path(name));
        Ok(report::system_regions(&report::parse(&self.get(&path).await?.json)?))
    }

    /// Registers `byte_size` bytes of the shared memory object `key`, from `offset` on, as `name`. For a [`Region`](crate::Region),
    /// [`Region::register`](crate::Region::register) also unregisters it again.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client) -> Result<(), nerite_client::Error> {
    /// client.register_system_region("frames", "/camera", 0, 1 << 20).await?;
    /// # Ok(()) }
    /// ```
    pub async fn register_system_region(
        &self,
        name: &str,
        key: &str,
        offset: u64,
        byte_size: u64,
    ) -> Result<(), Error> {
        let mut body = Object::new();
        body.key("key").text(key);
        body.key("offset").raw(&offset.to_string());
        body.key("byte_size").raw(&byte_size.to_string());
        self.post(&format!("{}/register", region_path(Some(name))), body.close()).await.map(|_| ())
    }

    /// Unregisters a region.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client) -> Result<(), nerite_client::Error> {
    /// client.unregister_system_region("frames").await?;
    /// # Ok(()) }
    /// ```
    pub async fn unregister_system_region(&self, name: &str) -> Result<(), Error> {
        self.post(&format!("{}/unregister", region_path(Some(name))), String::new()).await.map(|_| ())
    }

    /// Unregisters all system regions, including those of other clients.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client) -> Result<(), nerite_client::Error> {
    /// client.unregister_system_regions().await?;
    /// # Ok(()) }
    /// ```
    pub async fn unregister_system_regions(&self) -> Result<(), Error> {
        self.post(&format!("{}/unregister", region_path(None)), String::new()).await.map(|_| ())
    }

    /// The trace settings of the server or of a model, in JSON.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client) -> Result<(), nerite_client::Error> {
    /// println!("{}", client.trace_settings(None).await?);
    /// # Ok(()) }
    /// ```
    pub async fn trace_settings(&self, model: Option<&str>) -> Result<String, Error> {
        into_text(self.get(&trace_path(model)).await?)
    }

    /// Changes trace settings, which are given as a JSON object. Returns all of them.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client) -> Result<(), nerite_client::Error> {
    /// client.update_trace_settings(None, r#"{"trace_level":["TIMESTAMPS"]}"#).await?;
    /// # Ok(()) }
    /// ```
    pub async fn update_trace_settings(&self, model: Option<&str>, settings: &str) -> Result<String, Error> {
        into_text(self.post(&trace_path(model), settings.to_owned()).await?)
    }

    /// The log settings, in JSON.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client) -> Result<(), nerite_client::Error> {
    /// println!("{}", client.log_settings().await?);
    /// # Ok(()) }
    /// ```
    pub async fn log_settings(&self) -> Result<String, Error> {
        into_text(self.get("/v2/logging").await?)
    }

    /// Changes log settings, which are given as a JSON object. Returns all of them.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client) -> Result<(), nerite_client::Error> {
    /// client.update_log_settings(r#"{"log_verbose_level":1}"#).await?;
    /// # Ok(()) }
    /// ```
    pub async fn update_log_settings(&self, settings: &str) -> Result<String, Error> {
        into_text(self.post("/v2/logging", settings.to_owned()).await?)
    }

    /// The text of any page of the server, such as `/metrics` if the endpoint is the metrics port.
    ///
    /// ```no_run
    /// # async fn call() -> Result<(), nerite_client::Error> {
    /// let metrics = nerite_client::http::Client::new("http://localhost:8002")?.page("/metrics").await?;
    /// # Ok(()) }
    /// ```
    pub async fn page(&self, path: &str) -> Result<String, Error> {
        into_text(self.get(path).await?)
    }

    /// The answer to a health check. A refusal that means "not live" or "not ready" is `false`. Other refusals are errors.
    async fn holds(&self, path: &str) -> Result<bool, Error> {
        Ok(self.check(path).await?.is_ok())
    }

    /// The inner error: the server answered that what the path asks about is not so.
    async fn check(&self, path: &str) -> Result<Result<(), Status>, Error> {
        match self.get(path).await {
            Ok(_) => Ok(Ok(())),
            Err(Error::Refused(status)) => match status.code {
                Code::InvalidArg | Code::NotFound | Code::Unavailable => Ok(Err(status)),
                _ => Err(Error::Refused(status)),
            },
            Err(other) => Err(other),
        }
    }

    async fn get(&self, path: &str) -> Result<Answer, Error> {
        read::accepted(self.connections.exchange(Method::GET, path, &self.headers, vec![]).await?)
    }

    async fn post(&self, path: &str, body: String) -> Result<Answer, Error> {
        read::accepted(self.connections.exchange(Method::POST, path, &self.headers, vec![body.into()]).await?)
    }
}

impl Registers for Client {
    fn register<'c>(&'c self, name: &'c str, key: &'c str, byte_size: u64) -> Registration<'c> {
        Box::pin(self.register_system_region(name, key, 0, byte_size))
    }

    fn unregister<'c>(&'c self, name: &'c str) -> Registration<'c> {
        Box::pin(self.unregister_system_region(name))
    }
}

impl From<&Client> for Registrar {
    fn from(client: &Client) -> Registrar {
        Registrar::new(client.clone())
    }
}

fn into_text(answer: Answer) -> Result<String, Error> {
    String::from_utf8(answer.json).map_err(|_| Error::Answer("a text that is not UTF-8".to_owned()))
}

fn model_path(model: &str, version: Option<u64>) -> String {
    let path = escaped(model, "/v2/models/");
    version.map_or(path.clone(), |version| format!("{path}/versions/{version}"))
}

fn region_path(name: Option<&str>) -> String {
    let path = "/v2/systemsharedmemory";
    name.map_or(path.to_owned(), |name| escaped(name, &format!("{path}/region/")))
}

fn trace_path(model: Option<&str>) -> String {
    model.map_or("/v2".to_owned(), |model| model_path(model, None)) + "/trace/setting"
}

/// `prefix` and one path segment, escaped as Python's `quote` does. Triton keeps the escapes as part of the name.
fn escaped(segment: &str, prefix: &str) -> String {
    let mut path = prefix.to_owned();
    for byte in segment.bytes() {
        if byte.is_ascii_alphanumeric() || b"_.-~".contains(&byte) {
            path.push(byte as char);
        } else {
            path.extend(format!("%{byte:02X}").chars());
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_one_segment() {
        assert_eq!(model_path("a/b c", Some(3)), "/v2/models/a%2Fb%20c/versions/3");
        assert_eq!(region_path(None), "/v2/systemsharedmemory");
        assert_eq!(region_path(Some("in_0")), "/v2/systemsharedmemory/region/in_0");
        assert_eq!(trace_path(Some("m")), "/v2/models/m/trace/setting");
    }
}
