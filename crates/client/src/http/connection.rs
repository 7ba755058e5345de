//! How is one HTTP request made, and which connections are kept for later requests?

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use nerite_memory::{Buffer, Reason, Slot};

use super::body::Pieces;
use crate::connect::Connector;
use crate::endpoint::Endpoint;
use crate::{Error, HandshakeFault};

/// The header with the length of the JSON before the binary tensors, in requests and in answers.
pub(super) const JSON_LENGTH: &str = "inference-header-content-length";
/// The most idle connections that are kept. Further connections are closed after their request.
const IDLE_MAX: usize = 32;
/// The largest answer that is read.
const ANSWER_BYTES_MAX: u64 = 64 << 30;
/// The most bytes that one read from the socket returns.
const READ_BYTES_MAX: usize = 1 << 20;

/// Connections to one server. They are opened when needed, and kept for later requests until they are closed.
#[derive(Debug)]
pub(super) struct Connections {
    connector: Connector,
    idle: Mutex<Vec<SendRequest<Pieces>>>,
}

/// The answer to a request.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// The JSON, or the whole body if no tensors follow it.
    pub(super) json: Vec<u8>,
    /// The binary tensors, aligned to 64 bytes.
    pub(super) tensors: Buffer,
}

impl Connections {
    pub(super) fn new(connector: Connector) -> Connections {
        Connections { connector, idle: Mutex::new(Vec::new()) }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        self.connector.endpoint()
    }

    /// Sends one request and reads its answer, within the time that the options allow for one call.
    pub(super) async fn exchange(
        &self,
        method: Method,
        path: &str,
        headers: &HeaderMap,
        pieces: Vec<Bytes>,
    ) -> Result<Answer, Error> {
        let request = self.request(method, path, headers, pieces)?;
        self.connector.within_limit(self.send(request)).await
    }

    /// Sends one request and reads its answer. A kept connection that was closed before anything was sent is replaced. If the connection breaks later, the
    /// server may have carried out the request, so the request is not sent a second time.
    async fn send(&self, mut request: Request<Pieces>) -> Result<Answer, Error> {
        loop {
            let (mut sender, kept) = match self.take() {
                Some(sender) => (sender, true),
                None => (self.connect().await?, false),
            };
            if sender.ready().await.is_err() && kept {
                continue;
            }
            match sender.try_send_request(request).await {
                Ok(response) => {
                    let answer = self.take_in(response).await?;
                    self.keep(sender);
                    return Ok(answer);
                }
                Err(mut failure) => match failure.take_message() {
                    Some(unsent) if kept => request = unsent,
                    _ => return Err(self.broken(failure.into_error())),
                },
            }
        }
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        headers: &HeaderMap,
        pieces: Vec<Bytes>,
    ) -> Result<Request<Pieces>, Error> {
        let mut request = Request::builder().method(method).uri(path).body(Pieces::new(pieces)).map_err(|reason| {
            Error::Endpoint { endpoint: format!("{}{path}", self.connector.endpoint()), reason: reason.to_string() }
        })?;
        let length = request.body().byte_size();
        let sent = request.headers_mut();
        sent.extend(headers.iter().map(|(name, value)| (name.clone(), value.clone())));
        let host = http::HeaderValue::from_str(self.connector.endpoint().authority());
        sent.insert("host", host.map_err(|reason| self.broken(reason))?);
        sent.insert("content-length", http::HeaderValue::from(length));
        Ok(request)
    }

    fn take(&self) -> Option<SendRequest<Pieces>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|sender| !sender.is_closed());
        // The connection that was used last is the least likely to have been closed.
        idle.pop()
    }

    fn keep(&self, sender: SendRequest<Pieces>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX && !sender.is_closed() {
            idle.push(sender);
        }
    }

    async fn connect(&self) -> Result<SendRequest<Pieces>, Error> {
        let endpoint = self.connector.endpoint();
        let fault = |reason: String| Error::Connect { endpoint: endpoint.to_string(), reason };
        let stream = self.connector.connect().await.map_err(|error| match HandshakeFault::in_chain(&error) {
            Some(mismatch) => Error::Handshake { endpoint: endpoint.to_string(), fault: mismatch },
            None => fault(error.to_string()),
        })?;
        let mut builder = Builder::new();
        builder.max_buf_size(READ_BYTES_MAX);
        let made = builder.handshake(TokioIo::new(stream)).await;
        let (sender, connection) = made.map_err(|reason| fault(reason.to_string()))?;
        tokio::spawn(connection);
        Ok(sender)
    }

    /// Reads the whole answer: the JSON into a vector, and the tensors into one block.
    async fn take_in(&self, response: Response<Incoming>) -> Result<Answer, Error> {
        let number = |name: &str| {
            let value = response.headers().get(name)?;
            value.to_str().ok()?.parse::<u64>().ok()
        };
        let (status, total, json_len) = (response.status().as_u16(), number("content-length"), number(JSON_LENGTH));
        if total.is_some_and(|total| total > ANSWER_BYTES_MAX) {
            return Err(Error::Answer(format!("a body of more than {ANSWER_BYTES_MAX} bytes")));
        }
        let body = response.into_body();
        match (total, json_len) {
            (Some(total), Some(json_len)) if json_len <= total => {
                let (json, tensors) = self.split(body, json_len as usize, (total - json_len) as usize).await?;
                Ok(Answer { status, json, tensors })
            }
            _ => {
                let whole = body.collect().await.map_err(|reason| self.broken(reason))?.to_bytes();
                let at = json_len.map_or(whole.len(), |len| (len as usize).min(whole.len()));
                let tensors = Buffer::from(whole.slice(at..)).aligned(8);
                Ok(Answer { status, json: whole[..at].to_vec(), tensors })
            }
        }
    }

    async fn split(&self, mut body: Incoming, json_len: usize, rest: usize) -> Result<(Vec<u8>, Buffer), Error> {
        let (mut json, mut slot, mut at) = (Vec::with_capacity(json_len), Slot::heap(rest), 0);
        while let Some(frame) = body.frame().await {
            let Ok(mut piece) = frame.map_err(|reason| self.broken(reason))?.into_data() else { continue };
            let head = piece.split_to((json_len - json.len()).min(piece.len()));
            json.extend_from_slice(&head);
            let fits = slot.write(at, &piece, Reason::InlineResponse);
            fits.map_err(|_| Error::Answer("a body longer than its header says".to_owned()))?;
            at += piece.len();
        }
        if at < rest {
            return Err(Error::Answer(format!("a body of {at} bytes of tensors where its header says {rest}")));
        }
        Ok((json, slot.filled().into_buffer()))
    }

    fn broken(&self, reason: impl std::error::Error + 'static) -> Error {
        let endpoint = self.connector.endpoint().to_string();
        // Where the server's alert comes before the request is sent, the library of HTTP says only that the request was cancelled.
        match HandshakeFault::in_chain(&reason).or_else(|| self.connector.last_fault()) {
            Some(fault) => Error::Handshake { endpoint, fault },
            None => Error::Broken { endpoint, reason: reason.to_string() },
        }
    }
}
