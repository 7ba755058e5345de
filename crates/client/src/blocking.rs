//! How does a program without async code call a server?
//!
//! The clients of this module have the same calls as [`crate::http::Client`] and [`crate::grpc::Client`]. Each call returns when the answer has arrived.
//! [`wait`] waits for any other call of this crate.
//!
//! ```no_run
//! use nerite_client::{DataType, Region, Request, blocking};
//!
//! # fn call() -> Result<(), nerite_client::Error> {
//! let client = blocking::http::Client::new("http://localhost:8000")?;
//! let region = Region::create("/sums", 256)?;
//! region.write(0, &[1i32; 32])?;
//! let region = blocking::wait(region.register(&client, "sums"))?;
//! let request = Request::new("simple")
//!     .input_in_region("INPUT0", DataType::Int32, &[1, 16], &region, 0)?
//!     .input_in_region("INPUT1", DataType::Int32, &[1, 16], &region, 64)?
//!     .output_in_region("OUTPUT0", &region, 128, 64);
//! client.infer(&request)?;
//! assert_eq!(region.view::<i32>(128, 16)?.to_vec(), [2; 16]);
//! blocking::wait(region.unregister())
//! # }
//! ```

pub use crate::runtime::wait;

/// Makes methods that call the method of the same name of the inner client, and wait for its result.
macro_rules! waits {
    ($($(#[$about:meta])* fn $name:ident(&self $(, $given:ident: $type:ty)*) -> $answer:ty;)*) => {
        $($(#[$about])*
        pub fn $name(&self $(, $given: $type)*) -> Result<$answer, Error> {
            wait(self.client.$name($($given),*))
        })*
    };
}

/// Makes the client of a protocol, with the calls that both protocols have, and further ones.
macro_rules! client {
    ($protocol:ident, $($rest:tt)*) => {
        use std::path::Path;

        use crate::report::{IndexEntry, ModelReport, ServerReport, StatisticsReport, SystemRegionReport};
        use crate::runtime::{wait, within};
        use crate::{ClientOptions, Error, Registrar, Request, Response, Session};

        #[doc = concat!("A [`crate::", stringify!($protocol), "::Client`] whose calls wait. Cloning it is cheap and shares its connections.")]
        #[derive(Clone, Debug)]
        pub struct Client {
            client: crate::$protocol::Client,
        }

        impl Client {
            /// A client of the server at `http://host:port`, `https://host:port` or `unix:/path`.
            pub fn new(endpoint: &str) -> Result<Client, Error> {
                Client::with_options(endpoint, &ClientOptions::default())
            }

            /// As [`Client::new`], with time limits, certificates and a token.
            pub fn with_options(endpoint: &str, options: &ClientOptions) -> Result<Client, Error> {
                Ok(Client { client: within(|| crate::$protocol::Client::with_options(endpoint, options))? })
            }

            /// Adds a header that the client sends with every request, such as the key of a restricted call.
            pub fn with_header(self, name: &str, value: &str) -> Result<Client, Error> {
                Ok(Client { client: self.client.with_header(name, value)? })
            }

            waits! {
                /// Whether the server runs.
                fn is_live(&self) -> bool;
                /// Whether the server takes inference requests.
                fn is_ready(&self) -> bool;
                /// Whether a model, or one version of it, takes requests.
                fn is_model_ready(&self, model: &str, version: Option<u64>) -> bool;
                /// The server's name, version and extensions.
                fn server_metadata(&self) -> ServerReport;
                /// A model's versions and tensors.
                fn model_metadata(&self, model: &str, version: Option<u64>) -> ModelReport;
                /// Runs one inference.
                fn infer(&self, request: &Request) -> Response;
                /// The models of the repositories. With `ready`, only those that take requests.
                fn repository_index(&self, ready: bool) -> Vec<IndexEntry>;
                /// Loads a model, or reloads it. `config` replaces its configuration, in JSON.
                fn load_model(&self, model: &str, config: Option<&str>) -> ();
                /// Unloads a model. With `dependents`, also the models that an ensemble uses.
                fn unload_model(&self, model: &str, dependents: bool) -> ();
                /// The inference statistics so far, of one model or of all.
                fn statistics(&self, model: Option<&str>) -> Vec<StatisticsReport>;
                /// The system shared memory regions that are registered: all, or the one with this name.
                fn system_regions(&self, name: Option<&str>) -> Vec<SystemRegionReport>;
                /// Registers `byte_size` bytes of the shared memory object `key`, from `offset` on, as `name`.
                fn register_system_region(&self, name: &str, key: &str, offset: u64, byte_size: u64) -> ();
                /// Unregisters a region.
                fn unregister_system_region(&self, name: &str) -> ();
                /// Unregisters all system regions, including those of other clients.
                fn unregister_system_regions(&self) -> ();
                /// Registers the first `byte_size` bytes of a CUDA allocation, by its handle of 64 bytes.
                fn register_cuda_region(&self, name: &str, raw_handle: &[u8], device_id: u32, byte_size: u64) -> ();
                /// Unregisters a CUDA region. Without a name it unregisters all of them, including those of other clients.
                fn unregister_cuda_region(&self, name: Option<&str>) -> ();
                /// A session with the same server, if its socket is at the default path. `None` for a server on another host, or for a server other than
                /// nerite.
                fn session(&self) -> Option<Session>;
                /// As `session`, for the socket at `path`.
                fn session_at(&self, path: impl AsRef<Path>) -> Option<Session>;
                $($rest)*
            }
        }

        impl From<&Client> for Registrar {
            fn from(client: &Client) -> Registrar {
                Registrar::from(&client.client)
            }
        }
    };
}

/// Over HTTP.
pub mod http {
    client! { http,
        /// A model's configuration, as the server completed it, in JSON.
        fn model_config(&self, model: &str, version: Option<u64>) -> String;
        /// Changes the settings of traces, in JSON, of one model or of all. Returns all of them.
        fn update_trace_settings(&self, model: Option<&str>, settings: &str) -> String;
        /// The text of any page of the server, such as `/metrics` if the endpoint is the metrics port.
        fn page(&self, path: &str) -> String;
    }
}

/// Over gRPC.
pub mod grpc {
    use crate::grpc::{InferStream, StreamReply, proto};

    client! { grpc,
        /// A model's configuration, as the server completed it.
        fn model_config(&self, model: &str, version: Option<u64>) -> proto::ModelConfigResponse;
    }

    impl Client {
        /// Opens a stream of requests and responses. If opening fails, the first answer is the error.
        pub fn stream(&self) -> Result<Stream, Error> {
            Ok(Stream { stream: within(|| Ok(self.client.stream()))? })
        }
    }

    /// A blocking [`InferStream`]. It is an iterator over the answers. After [`Stream::finish`] it ends with the last answer.
    ///
    /// ```no_run
    /// # fn call(client: nerite_client::blocking::grpc::Client, requests: Vec<nerite_client::Request>)
    /// # -> Result<(), nerite_client::Error> {
    /// let mut stream = client.stream()?;
    /// for request in &requests {
    ///     stream.send(request)?;
    /// }
    /// stream.finish();
    /// for reply in stream {
    ///     println!("{} outputs", reply?.outcome?.outputs.len());
    /// }
    /// # Ok(()) }
    /// ```
    #[derive(Debug)]
    pub struct Stream {
        stream: InferStream,
    }

    impl Stream {
        /// Sends one request, without waiting for its answer.
        pub fn send(&mut self, request: &Request) -> Result<(), Error> {
            wait(self.stream.send(request))
        }

        /// Declares that no more requests follow. Answers still arrive.
        pub fn finish(&mut self) {
            self.stream.finish();
        }
    }

    impl Iterator for Stream {
        type Item = Result<StreamReply, Error>;

        fn next(&mut self) -> Option<Self::Item> {
            wait(self.stream.next()).transpose()
        }
    }
}
