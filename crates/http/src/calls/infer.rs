//! How is an inference request over HTTP handled?

mod framing;

use std::collections::VecDeque;
use std::io::Cursor;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, EXPECT};
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use hyper::body::Body;
use nerite_api::{Admission, Api, Protocol, Sending, Target, TraceContext, UnderWay, aside};
use nerite_budget::{Account, Charge};
use nerite_request::limits::TensorsMax;
use nerite_request::{InferRequest, InferResponse, Parameter, Recycled, Status};
use nerite_wire::json::{InferText, Rendering, read_infer, read_raw_infer, write_answer};

use super::CallResult;
use crate::encoding::{Encoding, Inflated, compress, inflate, response_encoding};
use crate::incoming::Incoming;
use crate::limits::{CHARGED_BYTES_MIN, COPIED_BYTES, INLINE_WORK_BYTES_MAX, KEPT_HEADERS_MAX};
use crate::load_report::LoadFormat;
use crate::receive::{Received, Store, discard, receive};
use crate::reply::{BINARY, Failure, JSON, Outgoing};
use framing::Framing;

/// The end of the JSON in a body.
pub const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// Reads the request, runs it, and writes the answer.
pub async fn infer(api: &Api, headers: &mut HeaderMap, body: Incoming, model: &str, version: &str) -> CallResult {
    let Read { _under_way, admission, infer_request, rendering, charge } =
        read(api, headers, body, model, version).await?;
    let sending = Sending::of(&infer_request, Protocol::Http);
    let response = Sending::begins_with(sending.as_ref(), api.infer_holding(admission, infer_request, charge).await)?;
    let rendered = if is_light(&response, &rendering) {
        Rendered::of(response, &rendering)?
    } else {
        aside(move || Rendered::of(response, &rendering)).await??
    };
    let encoding = response_encoding(headers.get(ACCEPT_ENCODING).map(HeaderValue::as_bytes));
    let load_format = LoadFormat::of(headers);
    let mut answer = write(rendered.sent_by(sending), encoding, headers).await?;
    if let Some((format, host)) = load_format.and_then(|format| Some((format, api.host_metrics()?))) {
        format.report(&host, answer.headers_mut());
    }
    Ok(answer)
}

/// A request that has come and was read.
struct Read {
    _under_way: UnderWay,
    admission: Admission,
    infer_request: Recycled<InferRequest>,
    rendering: Rendering,
    charge: Charge,
}

/// A function and not a value, because the future would keep the value while it waits.
fn target<'a>(model: &'a str, version: &'a str) -> Target<'a> {
    Target::of_one(Protocol::Http, model, version)
}

async fn read(api: &Api, headers: &HeaderMap, body: Incoming, model: &str, version: &str) -> Result<Read, Failure> {
    let clock = api.trace_clock();
    api.note_inference(model, version, "");
    // This is done before the body is read, so that a request that waits for its model holds no memory.
    let early = api.find_or_load(model, || api.find(target(model, version))).await.map_err(Failure::plain);
    let early = early
        .and_then(|found| Ok((found, Framing::of(headers, body.size_hint().exact(), api.http_input_bytes_max())?)));
    let (found, framing) = match early {
        Ok(early) => early,
        Err(failure) => {
            // A client that sent `Expect: 100-continue` learns from the answer that it must not send the body.
            if !failure.close && !headers.contains_key(EXPECT) {
                discard(body).await;
            }
            return Err(failure);
        }
    };
    let received = receive(body, framing.expected(), api.account()).await?;
    // From here on the server does not wait for the client. The model may have been unloaded while the body was read, because nothing kept it loaded.
    let accepted = api.find_or_load(model, || api.accept_found(&found, target(model, version))).await;
    let (under_way, admission) = accepted.map_err(Failure::plain)?;
    let mut received = inflated(api.account(), received, framing).await?;
    let mut charge = received.take_charge();
    let json_len = framing.json_len(received.bytes().len())?;
    let (bytes_max, tensors_max) = (framing.bytes_max, admission.tensors_max());
    let (mut infer_request, rendering) = if json_len == 0 {
        read_raw_infer(received.tail(0), model, version, bytes_max)?
    } else if json_len > INLINE_WORK_BYTES_MAX {
        let (model, version) = (model.to_string(), version.to_string());
        aside(move || read_text(&received, json_len, &model, &version, bytes_max, tensors_max)).await??
    } else {
        read_text(&received, json_len, model, version, bytes_max, tensors_max)?
    };
    forward_headers(api, headers, &mut infer_request)?;
    api.trace(&mut infer_request, Protocol::Http, clock, || trace_parent(api, headers));
    // Numbers that were text are in blocks of their own now, and the text is freed.
    if infer_request.inline_bytes() > charge.bytes().max(CHARGED_BYTES_MIN) {
        charge.resize(infer_request.inline_bytes());
    }
    Ok(Read { _under_way: under_way, admission, infer_request, rendering, charge })
}

fn read_text(
    received: &Received,
    json_len: usize,
    model: &str,
    version: &str,
    bytes_max: u64,
    tensors_max: TensorsMax,
) -> Result<(Recycled<InferRequest>, Rendering), Status> {
    let json = received.bytes().get(..json_len).unwrap_or_default();
    let tail = received.tail(json_len);
    read_infer(&InferText { json, tail: &tail, model, version, bytes_max, tensors_max })
}

/// The inflated body.
async fn inflated(account: &Account, received: Received, framing: Framing) -> Result<Received, Failure> {
    let Some(encoding) = framing.encoding else { return Ok(received) };
    let store = Store::new(framing.tail_at().unwrap_or_default(), None)?;
    let store = Inflated::new(store, account);
    // Boxed, so that the future of an uncompressed inference stays small.
    let inflated = Box::pin(inflate(Cursor::new(received), encoding, store, framing.bytes_max));
    Ok(inflated.await?.finish())
}

/// The client's span that a request with these headers belongs to.
pub fn trace_parent(api: &Api, headers: &HeaderMap) -> Option<TraceContext> {
    api.trace_parent(|name| headers.get(name).map(HeaderValue::as_bytes))
}

fn forward_headers(api: &Api, headers: &HeaderMap, infer_request: &mut InferRequest) -> Result<(), Status> {
    if !api.forwards_headers(Protocol::Http) {
        return Ok(());
    }
    for (name, value) in headers {
        if api.forwards_header(Protocol::Http, name.as_str())? {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            infer_request.parameters.insert(name.as_str(), Parameter::String(value));
        }
    }
    Ok(())
}

/// An answer's bytes: the JSON first, then the binary tensors.
struct Rendered {
    json: Bytes,
    tensors: VecDeque<Bytes>,
}

impl Rendered {
    fn of(response: Recycled<InferResponse>, rendering: &Rendering) -> Result<Rendered, Status> {
        let answer = write_answer(response, rendering)?;
        let mut tensors = VecDeque::with_capacity(answer.tail.len());
        for tensor in answer.tail {
            let len = tensor.len();
            let refuse = |refused| Status::no_memory(format_args!("an answer's tensor of {len} bytes"), refused);
            tensors.push_back(tensor.try_into_bytes().map_err(refuse)?);
        }
        Ok(Rendered { json: answer.head, tensors })
    }
}

impl Rendered {
    /// The same, noted as sent when its last bytes are.
    fn sent_by(mut self, sending: Option<Sending>) -> Rendered {
        if let Some(sending) = sending {
            let last = self.tensors.back_mut().unwrap_or(&mut self.json);
            *last = sending.keep(std::mem::take(last));
        }
        self
    }
}

/// Whether a front thread may write this answer: few bytes are written as text, and few must be copied because a peer may still write them.
fn is_light(response: &InferResponse, rendering: &Rendering) -> bool {
    let sent = response.outputs.iter().filter(|output| !output.placed);
    let work = sent.map(|output| match rendering.is_binary(&output.name) {
        false => output.data.len(),
        true if output.data.private_bytes().is_none() => output.data.len() / COPIED_BYTES,
        true => 0,
    });
    work.sum::<usize>() <= INLINE_WORK_BYTES_MAX
}

/// The answer's head is made in `headers`, which belonged to the request, to reuse their memory.
async fn write(rendered: Rendered, encoding: Option<Encoding>, headers: &mut HeaderMap) -> CallResult {
    let Rendered { json, tensors: mut pieces } = rendered;
    let mut headers = if headers.capacity() <= KEPT_HEADERS_MAX { std::mem::take(headers) } else { HeaderMap::new() };
    headers.clear();
    headers.insert(CONTENT_TYPE, if pieces.is_empty() { JSON } else { BINARY });
    if !pieces.is_empty() {
        headers.insert(JSON_LENGTH, HeaderValue::from(json.len()));
    }
    let body = if let Some(encoding) = encoding {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding.name()));
        pieces.push_front(json);
        Outgoing::Whole(Box::pin(compress(pieces, encoding)).await?)
    } else if pieces.is_empty() {
        Outgoing::Whole(json)
    } else {
        pieces.push_front(json);
        Outgoing::Pieces(pieces)
    };
    let mut response = Response::new(body);
    *response.headers_mut() = headers;
    Ok(response)
}
