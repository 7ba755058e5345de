//! How are requests sent in one gRPC stream?

use std::io::Result;
use std::time::Instant;

use nerite_client::grpc::proto::{ModelStreamInferResponse, infer_parameter::ParameterChoice};
use prost::Message;

use super::frames::{END_STREAM, Headers, Kind};
use super::messages::Messages;
use super::{Connection, Endpoint, Grpc, Times, bad};

/// The parameter of a response that says whether it is the last one of its request.
const FINAL: &str = "triton_final_response";

/// One stream, with one request under way at a time.
pub(crate) struct Stream {
    connection: Grpc,
    is_open: bool,
    messages: Messages,
    /// When the responses of the last request came.
    responses: Vec<Instant>,
}

impl Stream {
    pub(crate) fn connect(endpoint: &Endpoint, headers: Headers) -> Result<Stream> {
        Ok(Stream {
            connection: Grpc::connect(endpoint, headers)?,
            is_open: false,
            messages: Messages::default(),
            responses: Vec::new(),
        })
    }

    /// Whether the responses that have arrived end with the last one of the request.
    fn read(&mut self) -> Result<bool> {
        while let Some(message) = self.messages.next()? {
            let message = ModelStreamInferResponse::decode(message).map_err(|reason| bad(&reason.to_string()))?;
            if !message.error_message.is_empty() {
                return Err(bad(&message.error_message));
            }
            let response = message.infer_response.unwrap_or_default();
            let is_final = response.parameters.get(FINAL).and_then(|parameter| parameter.parameter_choice.as_ref());
            // The end of a decoupled model's responses may be a message without outputs.
            if !response.outputs.is_empty() {
                self.responses.push(Instant::now());
            }
            if is_final == Some(&ParameterChoice::BoolParam(true)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Connection for Stream {
    fn exchange(&mut self, request: &[u8]) -> Result<Times> {
        let start = Instant::now();
        let head = if self.is_open { Vec::new() } else { self.connection.begin() };
        self.is_open = true;
        self.connection.send(head, request, false)?;
        let sent = Instant::now();
        self.responses.clear();
        let mut first = None;
        loop {
            let frame = self.connection.next_kept(Some(&mut self.messages.bytes))?;
            if frame.stream != self.connection.stream {
                continue;
            }
            if frame.kind == Kind::DATA {
                let first = *first.get_or_insert_with(Instant::now);
                if self.read()? {
                    let responses = self.responses.len() as u32;
                    // As of perf_analyzer: the latency is that of the first response.
                    let end = self.responses.first().copied().unwrap_or_else(Instant::now);
                    return Ok(Times { start, sent, first, end, requests: 1, responses });
                }
            }
            if frame.flags & END_STREAM != 0 && matches!(frame.kind, Kind::DATA | Kind::HEADERS) {
                return Err(bad("the server has ended the stream"));
            }
        }
    }

    fn responses(&self) -> &[Instant] {
        &self.responses
    }
}
