//! How do the tests send and receive gRPC frames?

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, Request, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use nerite_wire::proto::messages::model_infer_request::InferInputTensor;
use nerite_wire::proto::messages::{ModelInferRequest, ModelStreamInferResponse};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

/// A client with one connection.
#[derive(Clone)]
pub struct Peer(SendRequest<Sent>);

/// The answer to a call.
#[derive(Debug)]
pub struct Reply {
    pub http: StatusCode,
    pub headers: HeaderMap,
    /// Messages with their compression flags.
    pub messages: Vec<(u8, Bytes)>,
    pub trailers: Option<HeaderMap>,
}

impl Reply {
    /// Status and message. The message is percent-encoded, as it was received.
    pub fn status(&self) -> (u32, &str) {
        let headers = self.trailers.as_ref().unwrap_or(&self.headers);
        let text = |name: &str| headers.get(name).map_or("", |value| value.to_str().unwrap());
        (text("grpc-status").parse().unwrap(), text("grpc-message"))
    }

    #[track_caller]
    pub fn message<M: Message + Default>(&self) -> M {
        assert_eq!(self.status(), (0, ""));
        assert_eq!(self.messages.len(), 1);
        M::decode(self.messages[0].1.clone()).unwrap()
    }
}

/// A body that the test sends piece by piece. It ends when its sender is dropped.
pub struct Sent(mpsc::UnboundedReceiver<Bytes>);

impl Body for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

impl Peer {
    pub async fn over(socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Peer {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(1 << 24).initial_connection_window_size(1 << 24).max_frame_size(1 << 20);
        let (peer, connection) = builder.handshake(TokioIo::new(socket)).await.unwrap();
        tokio::spawn(connection);
        Peer(peer)
    }

    /// As [`Peer::over`], with the protocol's small default windows.
    pub async fn narrow(socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Peer {
        let builder = http2::Builder::new(TokioExecutor::new());
        let (peer, connection) = builder.handshake(TokioIo::new(socket)).await.unwrap();
        tokio::spawn(connection);
        Peer(peer)
    }

    /// Begins a call whose body is sent through the returned sender.
    #[expect(clippy::disallowed_methods, reason = "only the test feeds it")]
    pub async fn begin(&self, path: &str, headers: &[(&str, &str)]) -> Option<(mpsc::UnboundedSender<Bytes>, Calling)> {
        let (feed, body) = mpsc::unbounded_channel();
        let path =
            if path.starts_with('/') { path.to_owned() } else { format!("/inference.GRPCInferenceService/{path}") };
        let mut request = Request::post(format!("http://test{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/grpc");
        }
        let mut peer = self.0.clone();
        peer.ready().await.ok()?;
        let response = peer.send_request(request.body(Sent(body)).unwrap());
        Some((feed, Box::pin(response)))
    }

    /// Makes a call whose body consists of these pieces.
    pub async fn call_raw(&self, path: &str, headers: &[(&str, &str)], pieces: &[&[u8]]) -> Reply {
        let (feed, calling) = self.begin(path, headers).await.unwrap();
        for piece in pieces {
            feed.send(Bytes::copy_from_slice(piece)).unwrap();
        }
        drop(feed);
        finish(calling).await
    }

    pub async fn call(&self, path: &str, message: &impl Message) -> Reply {
        self.call_raw(path, &[("te", "trailers")], &[&framed(message)]).await
    }
}

/// The future of a response.
pub type Calling = Pin<Box<dyn Future<Output = hyper::Result<http::Response<Incoming>>> + Send>>;

/// Reads a whole response.
pub async fn finish(calling: Calling) -> Reply {
    let (head, body) = calling.await.unwrap().into_parts();
    let collected = body.collect().await.unwrap();
    let trailers = collected.trailers().cloned();
    let mut bytes = collected.to_bytes();
    let mut messages = Vec::new();
    while let Some(message) = take_message(&mut bytes) {
        messages.push(message);
    }
    assert!(bytes.is_empty(), "bytes behind the last message");
    Reply { http: head.status, headers: head.headers, messages, trailers }
}

fn take_message(bytes: &mut Bytes) -> Option<(u8, Bytes)> {
    if bytes.len() < 5 || bytes.len() < 5 + (&bytes[1..5]).get_u32() as usize {
        return None;
    }
    let flag = bytes.get_u8();
    let len = bytes.get_u32() as usize;
    Some((flag, bytes.split_to(len)))
}

/// A ModelStreamInfer in progress.
pub struct StreamCall {
    feed: Option<mpsc::UnboundedSender<Bytes>>,
    body: Incoming,
    bytes: BytesMut,
    pub trailers: Option<HeaderMap>,
}

impl StreamCall {
    pub async fn begin(peer: &Peer, headers: &[(&str, &str)]) -> StreamCall {
        let (feed, calling) = peer.begin("ModelStreamInfer", headers).await.unwrap();
        let response = calling.await.unwrap();
        StreamCall { feed: Some(feed), body: response.into_body(), bytes: BytesMut::new(), trailers: None }
    }

    pub fn send_message(&self, message: &impl Message) {
        self.send(&framed(message));
    }

    pub fn send(&self, bytes: &[u8]) {
        self.feed.as_ref().unwrap().send(Bytes::copy_from_slice(bytes)).unwrap();
    }

    pub fn end(&mut self) {
        self.feed = None;
    }

    /// The next answer. `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<ModelStreamInferResponse> {
        let (_, message) = self.next_raw().await?;
        Some(ModelStreamInferResponse::decode(message).unwrap())
    }

    /// The next message with its compression flag.
    pub async fn next_raw(&mut self) -> Option<(u8, Bytes)> {
        loop {
            let mut bytes = self.bytes.split().freeze();
            let message = take_message(&mut bytes);
            self.bytes = BytesMut::from(bytes);
            if message.is_some() {
                return message;
            }
            let frame = self.body.frame().await?.unwrap();
            match frame.into_data() {
                Ok(data) => self.bytes.extend_from_slice(&data),
                Err(frame) => self.trailers = frame.into_trailers().ok(),
            }
        }
    }

    /// Status and message at the end of the stream.
    pub async fn status(mut self) -> (u32, String) {
        assert_eq!(self.next().await, None);
        let trailers = self.trailers.unwrap();
        let text = |name: &str| trailers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
        (text("grpc-status").parse().unwrap(), text("grpc-message"))
    }
}

pub fn framed(message: &impl Message) -> Vec<u8> {
    let mut out = vec![0];
    out.extend((message.encoded_len() as u32).to_be_bytes());
    message.encode(&mut out).unwrap();
    out
}

/// A request for `model` with one vector of `len` ones.
pub fn request(model: &str, id: &str, len: usize) -> ModelInferRequest {
    let shape = vec![len as i64];
    ModelInferRequest {
        model_name: model.into(),
        id: id.into(),
        inputs: vec![InferInputTensor { name: "IN".into(), datatype: "FP32".into(), shape, ..Default::default() }],
        raw_input_contents: vec![1f32.to_le_bytes().repeat(len).into()],
        ..Default::default()
    }
}
