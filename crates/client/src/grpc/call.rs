//! How is one gRPC call made?

use std::error::Error as _;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use nerite_request::{Code, Status};
use prost::Message;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataKey, MetadataMap, MetadataValue};
use tonic::transport::{Channel, Endpoint as Transport};
use tonic_prost::ProstCodec;
use tower_service::Service;

use crate::connect::{Connector, Stream as Connection};
use crate::endpoint::Endpoint;
use crate::token::AUTHORIZATION;
use crate::trace::Trace;
use crate::{ClientOptions, Error, HandshakeFault};

/// The largest message that the protocol allows, in each direction.
const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;
/// How many bytes the server may send before it waits for a window update (flow control of HTTP/2). Large tensors fit, so they do not wait.
const WINDOW_BYTES: u32 = 64 << 20;
/// The size of one frame that the server may send.
const FRAME_BYTES_MAX: u32 = 1 << 20;

/// The name of the protocol in TLS (ALPN).
const PROTOCOL: &[u8] = b"h2";
const SERVICE: &str = "/inference.GRPCInferenceService/";

/// One connection, and the headers that every call sends.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    channel: Channel,
    connector: Connector,
    headers: MetadataMap,
}

impl Caller {
    pub(super) fn new(address: &str, options: &ClientOptions) -> Result<Caller, Error> {
        let connector = Connector::new(address, options, PROTOCOL)?;
        let transport = Transport::from_shared(connector.endpoint().origin())
            .map_err(|reason| Error::Endpoint { endpoint: address.to_owned(), reason: reason.to_string() })?;
        let channel = transport
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES_MAX)
            .connect_with_connector_lazy(ConnectorService(connector.clone()));
        let mut caller = Caller { channel, connector, headers: MetadataMap::new() };
        options.token.bearer().map_or(Ok(()), |bearer| caller.add_header(AUTHORIZATION, &bearer))?;
        Ok(caller)
    }

    pub(super) fn add_header(&mut self, name: &str, value: &str) -> Result<(), Error> {
        let fault = |reason: String| Error::Endpoint { endpoint: format!("header {name}"), reason };
        let key = name.parse::<MetadataKey<Ascii>>().map_err(|reason| fault(reason.to_string()))?;
        let mut value = value.parse::<MetadataValue<Ascii>>().map_err(|reason| fault(reason.to_string()))?;
        // The debug output of the client must not show the value.
        value.set_sensitive(true);
        if key == AUTHORIZATION {
            self.headers.remove(AUTHORIZATION);
        }
        self.headers.append(key, value);
        Ok(())
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        self.connector.endpoint()
    }

    pub(super) fn authorization(&self) -> Option<&str> {
        self.headers.get(AUTHORIZATION)?.to_str().ok()
    }

    /// A call with one message in each direction.
    pub(super) async fn unary<Q, A>(&self, method: &str, message: Q) -> Result<A, Error>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        self.unary_in(None, method, message).await
    }

    /// As [`Caller::unary`], for a call within a trace.
    pub(super) async fn unary_in<Q, A>(&self, trace: Option<Trace<'_>>, method: &str, message: Q) -> Result<A, Error>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let call = async {
            let mut grpc = self.grpc().await?;
            let mut request = self.request(message);
            for (name, value) in trace.into_iter().flat_map(Trace::headers) {
                if let Ok(value) = value.parse() {
                    request.metadata_mut().insert(name, value);
                }
            }
            let answered = grpc.unary(request, path(method)?, ProstCodec::<Q, A>::default()).await;
            answered.map(tonic::Response::into_inner).map_err(|status| self.failed(&status))
        };
        self.connector.within_limit(call).await
    }

    /// A call with many messages in each direction.
    pub(super) async fn streaming<Q, A>(
        &self,
        method: &str,
        messages: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<tonic::Streaming<A>, Error>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc().await?;
        let answered = grpc.streaming(self.request(messages), path(method)?, ProstCodec::<Q, A>::default()).await;
        answered.map(tonic::Response::into_inner).map_err(|status| self.failed(&status))
    }

    /// The error of a call that failed: the server's refusal, or a failure of the connection.
    pub(super) fn failed(&self, status: &tonic::Status) -> Error {
        let Some(mut cause) = status.source() else { return Error::Refused(refusal(status)) };
        let mut connecting = false;
        loop {
            connecting |= cause.is::<tonic::ConnectError>();
            match cause.source() {
                Some(deeper) => cause = deeper,
                None => break,
            }
        }
        let (endpoint, reason) = (self.connector.endpoint().to_string(), cause.to_string());
        // The library of HTTP/2 drops some errors of the connection.
        if let Some(fault) = HandshakeFault::in_chain(status).or_else(|| self.connector.last_fault()) {
            return Error::Handshake { endpoint, fault };
        }
        if connecting { Error::Connect { endpoint, reason } } else { Error::Broken { endpoint, reason } }
    }

    async fn grpc(&self) -> Result<Grpc<Channel>, Error> {
        let mut grpc = Grpc::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let ready = grpc.ready().await;
        ready.map_err(|fault| self.failed(&tonic::Status::from_error(Box::new(fault))))?;
        Ok(grpc)
    }

    fn request<Q>(&self, message: Q) -> tonic::Request<Q> {
        let mut request = tonic::Request::new(message);
        request.metadata_mut().clone_from(&self.headers);
        request
    }
}

/// The connector as the service that tonic calls to connect.
struct ConnectorService(Connector);

impl Service<Uri> for ConnectorService {
    type Response = TokioIo<Connection>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Connection>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = self.0.clone();
        Box::pin(async move { connector.connect().await.map(TokioIo::new) })
    }
}

fn path(method: &str) -> Result<PathAndQuery, Error> {
    let path = format!("{SERVICE}{method}");
    PathAndQuery::try_from(path.as_str())
        .map_err(|reason| Error::Endpoint { endpoint: path, reason: reason.to_string() })
}

fn refusal(status: &tonic::Status) -> Status {
    let code = match status.code() {
        tonic::Code::InvalidArgument => Code::InvalidArg,
        tonic::Code::NotFound => Code::NotFound,
        tonic::Code::AlreadyExists => Code::AlreadyExists,
        tonic::Code::Internal => Code::Internal,
        tonic::Code::Unavailable => Code::Unavailable,
        tonic::Code::Unimplemented => Code::Unsupported,
        tonic::Code::Cancelled => Code::Cancelled,
        tonic::Code::Unauthenticated => Code::Unauthenticated,
        tonic::Code::PermissionDenied => Code::Denied,
        tonic::Code::ResourceExhausted => Code::Exhausted,
        _ => Code::Unknown,
    };
    let message = status.message();
    Status::new(code, if message.is_empty() { status.code().description() } else { message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nobody_at_the_address_is_an_error_of_connecting() {
        let caller = Caller::new("unix:/nonexistent/nerite.sock", &ClientOptions::default()).expect("an address");
        let answer: Result<nerite_wire::proto::messages::ServerLiveResponse, _> =
            caller.unary("ServerLive", nerite_wire::proto::messages::ServerLiveRequest {}).await;
        let error = answer.expect_err("nobody there");
        assert!(matches!(error, Error::Connect { .. }), "{error:?}");
        assert!(error.to_string().contains("unix:/nonexistent/nerite.sock"), "{error}");
    }

    #[test]
    fn a_refusal_keeps_its_kind_and_words() {
        let status = refusal(&tonic::Status::invalid_argument("bad shape"));
        assert_eq!(status, Status::new(Code::InvalidArg, "bad shape"));
    }
}
