//! How does a client call a server over gRPC?

mod call;
mod cuda;
mod stream;

use std::collections::BTreeMap;

use nerite_request::Code;
pub use nerite_wire::proto::messages as proto;

use self::call::Caller;
pub use self::stream::{InferStream, StreamReply};
use crate::pending_placement::PendingPlacement;
use crate::region::{Registers, Registration};
use crate::report::{IndexEntry, ModelReport, ServerReport, StatisticsReport, SystemRegionReport};
use crate::{ClientOptions, Error, Registrar, Request, Response, message};

/// A client of the gRPC protocol. Cloning it is cheap and shares its connection. It connects at the first call.
///
/// ```no_run
/// use nerite_client::{Request, Tensor, grpc};
///
/// # async fn call() -> Result<(), nerite_client::Error> {
/// let client = grpc::Client::new("http://localhost:8001")?;
/// let ones = Tensor::from_slice("INPUT0", &[1, 16], &[1i32; 16])?;
/// let twos = Tensor::from_slice("INPUT1", &[1, 16], &[2i32; 16])?;
/// let response = client.infer(&Request::new("simple").input(ones).input(twos)).await?;
/// assert_eq!(response.output("OUTPUT0")?.as_slice::<i32>()?, [3; 16]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    caller: Caller,
}

impl Client {
    /// A client of the server at `http://host:port`, `https://host:port` or `unix:/path`. Call it inside a tokio runtime.
    pub fn new(endpoint: &str) -> Result<Client, Error> {
        Client::with_options(endpoint, &ClientOptions::default())
    }

    /// As [`Client::new`], with time limits, certificates and a token.
    pub fn with_options(endpoint: &str, options: &ClientOptions) -> Result<Client, Error> {
        Ok(Client { caller: Caller::new(endpoint, options)? })
    }

    /// The port of the server, if it has one.
    pub(crate) fn port(&self) -> Option<u16> {
        self.caller.endpoint().port()
    }

    /// The header `authorization` that the client sends.
    pub(crate) fn authorization(&self) -> Option<&str> {
        self.caller.authorization()
    }

    /// Adds a header that the client sends with every call, such as the key of a restricted call. The header `authorization` replaces the token of the options.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<Client, Error> {
        self.caller.add_header(name, value)?;
        Ok(self)
    }

    /// Whether the server runs.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::grpc::Client) -> Result<(), nerite_client::Error> {
    /// assert!(client.is_live().await?);
    /// # Ok(()) }
    /// ```
    pub async fn is_live(&self) -> Result<bool, Error> {
        let answer: Result<proto::ServerLiveResponse, _> = self.call("ServerLive", proto::ServerLiveRequest {}).await;
        no_if_unavailable(answer.map(|answer| answer.live))
    }

    /// Whether the server takes inference requests.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::grpc::Client) -> Result<(), nerite_client::Error> {
    /// while !client.is_ready().await? {}
    /// # Ok(()) }
    /// ```
    pub async fn is_ready(&self) -> Result<bool, Error> {
        let answer: Result<proto::ServerReadyResponse, _> =
            self.call("ServerReady", proto::ServerReadyRequest {}).await;
        no_if_unavailable(answer.map(|answer| answer.ready))
    }

    /// Whether a model, or one version of it, takes requests.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::grpc::Client) -> Result<(), nerite_client::Error> {
    /// assert!(client.is_model_ready("simple", None).await?);
    /// # Ok(()) }
    /// ```
    pub async fn is_model_ready(&self, model: &str, version: Option<u64>) -> Result<bool, Error> {
        let message = proto::ModelReadyRequest { name: model.to_owned(), version: written(version) };
        let answer: Result<proto::ModelReadyResponse, _> = self.call("ModelReady", message).await;
        no_if_unavailable(answer.map(|answer| answer.ready))
    }

    /// The server's name, version and extensions.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::grpc::Client) -> Result<(), nerite_client::Error> {
    /// println!("{}", client.server_metadata().await?.version);
    /// # Ok(()) }
    /// ```
    pub async fn server_metadata(&self) -> Result<ServerReport, Error> {
        let answer: proto::ServerMetadataResponse =
            self.call("ServerMetadata", proto::ServerMetadataRequest {}).await?;
        Ok(ServerReport { name: answer.name, version: answer.version, extensions: answer.extensions })
    }

    /// A model's versions and tensors.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::grpc::Client) -> Result<(), nerite_client::Error> {
    /// for input in client.model_metadata("simple", None).await?.inputs {
    ///     println!("{} {} {:?}", input.name, input.datatype, input.shape);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn model_metadata(&self, model: &str, version: Option<u64>) -> Result<ModelReport, Error> {
        let message = proto::ModelMetadataRequest { name: model.to_owned(), version: written(version) };
        message::model(self.call("ModelMetadata", message).await?)
    }

    /// A model's configuration, as the server completed it.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::grpc::Client) -> Result<(), nerite_client::Error> {
    /// let config = client.model_config("simple", None).await?.config.unwrap_or_default();
    /// println!("{}", config.max_batch_size);
    /// # Ok(()) }
    /// ```
    pub async fn model_config(&self, model: &str, version: Option<u64>) -> Result<proto::ModelConfigResponse, Error> {
        let message = proto::ModelConfigRequest { name: model.to_owned(), version: written(version) };
        self.call("ModelConfig", message).await
    }

    /// Runs one inference. Inline tensors are sent in the message. Tensors in regions are not sent.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::grpc::Client) -> Result<(), nerite_client::Error> {
    /// use nerite_client::{Request, Tensor};
    ///
    /// let image = Tensor::from_slice("image", &[1, 64], &[0f32; 64])?;
    /// let response = client.infer(&Request::new("digits").input(image)).await?;
    /// println!("{:?}", response.output("probabilities")?.as_slice::<f32>()?);
    /// # Ok(()) }
    /// ```
    pub async fn infer(&self, request: &Request) -> Result<Response, Error> {
        let placement = PendingPlacement::of(request);
        let message = message::request(request, placement.as_ref().map(PendingPlacement::key));
        let answer = self.caller.unary_in(request.trace(), "ModelInfer", message).await?;
        let mut response = message::response(answer)?;
        if let Some(placement) = placement {
            placement.settle(&mut response).await?;
            placement.end();
        }
        Ok(response)
    }

    /// Opens a stream of requests and responses, for models that answer many times, or to keep requests in order. Call it inside a tokio runtime. If opening
    /// fails, the first answer is the error.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::grpc::Client, requests: Vec<nerite_client::Request>)
    /// # -> Result<(), nerite_client::Error> {
    /// let mut stream = client.stream();
    /// for request in &requests {
    ///     stream.send(request).await?;
    /// }
    /// stream.finish();
    /// while let Some(reply) = stream.next().await? {
    ///     println!("{}: {} outputs", reply.id, reply.outcome?.outputs.len());
    /// }
    /// # Ok(()) }
    /// ```
    pub fn stream(&self) -> InferStream {
        InferStream::open(&self.caller)
    }

    /// The models of the repositories. With `ready`, only those that take requests.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::grpc::Client) -> Result<(), nerite_client::Error> {
    /// for entry in client.repository_index(false).await? {
    ///     println!("{} {} {}", entry.name, entry.state, entry.reason);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn repository_index(&self, ready: bool) -> Result<Vec<IndexEntry>, Error> {
        let message = proto::RepositoryIndexRequest { repository_name: String::new(), ready };
        let answer: proto::RepositoryIndexResponse = self.call("RepositoryIndex", message).await?;
        Ok(answer.models.into_iter().map(message::index_entry).collect())
    }

    /// Loads a model, or reloads it. `config` replaces its configuration, in JSON.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::grpc::Client) -> Result<(), nerite_client::Error> {
    /// client.load_model("simple", None).await?;
    /// # Ok(()) }
    /// ```
    pub async fn load_model(&self, model: &str, config: Option<&str>) -> Result<(), Error> {
        let parameters = config.map(|config| message::load_parameter("config", config)).into_iter().collect();
        let (repository_name, model_name) = (String::new(), model.to_owned());
        let message = proto::RepositoryModelLoadRequest { repository_name, model_name, parameters };
        self.call("RepositoryModelLoad", message).await.map(|_: proto::RepositoryModelLoadResponse| ())
    }

    /// Unloads a model. With `dependents`, also the models that an ensemble uses.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::grpc::Client) -> Result<(), nerite_client::Error> {
    /// client.unload_model("simple", false).await?;
    /// # Ok(()) }
    /// ```
    pub async fn unload_model(&self, model: &str, dependents: bool) -> Result<(), Error> {
        let parameters = BTreeMap::from([message::unload_parameter(dependents)]);
        let (repository_name, model_name) = (String::new(), model.to_owned());
        let message = proto::RepositoryModelUnloadRequest { repository_name, model_name, parameters };
        self.call("RepositoryModelUnload", message).await.map(|_: proto::RepositoryModelUnloadResponse| ())
    }

    /// The inference statistics so far, of one model or of all.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::grpc::Client) -> Result<(), nerite_client::Error> {
    /// println!("{}", client.statistics(Some("simple")).await?[0].inference_count);
    /// # Ok(()) }
    /// ```
    pub async fn statistics(&self, model: Option<&str>) -> Result<Vec<StatisticsReport>, Error> {
        let name = model.unwrap_or_default().to_owned();
        let message = proto::ModelStatisticsRequest { name, version: String::new() };
        let answer: proto::ModelStatisticsResponse = self.call("ModelStatistics", message).await?;
        answer.model_stats.into_iter().map(message::statistics).collect()
    }

    /// The system shared memory regions that are registered: all, or the one with this name.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::grpc::Client) -> Result<(), nerite_client::Error> {
    /// for region in client.system_regions(None).await? {
    ///     println!("{} is {} bytes of {}", region.name, region.byte_size, region.key);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn system_regions(&self, name: Option<&str>) -> Result<Vec<SystemRegionReport>, Error> {
        let message = proto::SystemSharedMemoryStatusRequest { name: name.unwrap_or_default().to_owned() };
        let answer: proto::SystemSharedMemoryStatusResponse = self.call("SystemSharedMemoryStatus", message).await?;
        Ok(answer.regions.into_values().map(message::system_region).collect())
    }

    /// Registers `byte_size` bytes of the shared memory object `key`, from `offset` on, as `name`. For a [`Region`](crate::Region),
    /// [`Region::register`](crate::Region::register) also unregisters it again.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::grpc::Client) -> Result<(), nerite_client::Error> {
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
        let (name, key) = (name.to_owned(), key.to_owned());
        let message = proto::SystemSharedMemoryRegisterRequest { name, key, offset, byte_size };
        self.call("SystemSharedMemoryRegister", message).await.map(|_: proto::SystemSharedMemoryRegisterResponse| ())
    }

    /// Unregisters a region.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::grpc::Client) -> Result<(), nerite_client::Error> {
    /// client.unregister_system_region("frames").await?;
    /// # Ok(()) }
    /// ```
    pub async fn unregister_system_region(&self, name: &str) -> Result<(), Error> {
        let message = proto::SystemSharedMemoryUnregisterRequest { name: name.to_owned() };
        self.call("SystemSharedMemoryUnregister", message)
            .await
            .map(|_: proto::SystemSharedMemoryUnregisterResponse| ())
    }

    /// Unregisters all system regions, including those of other clients.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::grpc::Client) -> Result<(), nerite_client::Error> {
    /// client.unregister_system_regions().await?;
    /// # Ok(()) }
    /// ```
    pub async fn unregister_system_regions(&self) -> Result<(), Error> {
        self.unregister_system_region("").await
    }

    /// Applies `changes` to the trace settings of the server or of a model, and returns all of them.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::grpc::Client) -> Result<(), nerite_client::Error> {
    /// println!("{:?}", client.trace_settings(None, Default::default()).await?.settings);
    /// # Ok(()) }
    /// ```
    pub async fn trace_settings(
        &self,
        model: Option<&str>,
        changes: BTreeMap<String, proto::trace_setting_request::SettingValue>,
    ) -> Result<proto::TraceSettingResponse, Error> {
        let model_name = model.unwrap_or_default().to_owned();
        self.call("TraceSetting", proto::TraceSettingRequest { settings: changes, model_name }).await
    }

    /// Applies `changes` to the log settings, and returns all of them.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::grpc::Client) -> Result<(), nerite_client::Error> {
    /// println!("{:?}", client.log_settings(Default::default()).await?.settings);
    /// # Ok(()) }
    /// ```
    pub async fn log_settings(
        &self,
        changes: BTreeMap<String, proto::log_settings_request::SettingValue>,
    ) -> Result<proto::LogSettingsResponse, Error> {
        self.call("LogSettings", proto::LogSettingsRequest { settings: changes }).await
    }

    async fn call<Q, A>(&self, method: &str, message: Q) -> Result<A, Error>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        self.caller.unary(method, message).await
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

/// The answer to a health check. A server that is stopping, or a newer server, may refuse a health check. Such a refusal counts as `false`.
fn no_if_unavailable(answer: Result<bool, Error>) -> Result<bool, Error> {
    match answer {
        Err(Error::Refused(status)) if matches!(status.code, Code::Unavailable | Code::NotFound) => Ok(false),
        other => other,
    }
}

fn written(version: Option<u64>) -> String {
    version.map(|version| version.to_string()).unwrap_or_default()
}
