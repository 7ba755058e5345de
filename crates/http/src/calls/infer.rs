//! How is an inference request over HTTP handled?

mod framing;

use std::collections::VecDeque;
use std::io::Cursor;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, EXPECT};
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use hyper::body::Body;
use nerite_api::{Admission, Api, Found, ModelLoad, Protocol, Sending, Target, TraceContext, UnderWay, aside};
use nerite_budget::{Account, Charge};
use nerite_request::limits::TensorsMax;
use nerite_request::{InferRequest, InferResponse, Parameter, Recycled, Status};
use nerite_wire::json::{InferText, Rendering, read_infer, read_raw_infer, read_timeout, write_answer};

use super::CallResult;
use crate::encoding::{Encoding, Inflated, compress, inflate, response_encoding};
use crate::incoming::Incoming;
use crate::limits::{CHARGED_BYTES_MIN, COPIED_BYTES, INLINE_WORK_BYTES_MAX, KEPT_HEADERS_MAX};
use crate::load_report::{LoadFormat, add_report};
use crate::receive::{Received, Store, discard, receive};
use crate::reply::{BINARY, Failure, JSON, Outgoing};
use framing::Framing;

/// The header with the length of the JSON at the front of a body.
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
        aside(api.account(), move || Rendered::of(response, &rendering)).await??
    };
    let encoding = response_encoding(headers.get(ACCEPT_ENCODING).map(HeaderValue::as_bytes));
    let load_format = LoadFormat::of(headers);
    let mut answer = write(rendered.sent_by(sending), encoding, headers).await?;
    add_report(api, load_format, answer.headers_mut());
    Ok(answer)
}

/// A request that has arrived and was read.
struct Read {
    _under_way: UnderWay,
    admission: Admission,
    infer_request: Recycled<InferRequest>,
    rendering: Rendering,
    charge: Charge,
}

/// A function and not a variable, because the future of `read` would store a variable across each `await`.
fn target<'a>(model: &'a str, version: &'a str) -> Target<'a> {
    Target::of_one(Protocol::Http, model, version)
}

async fn read(api: &Api, headers: &HeaderMap, body: Incoming, model: &str, version: &str) -> Result<Read, Failure> {
    let clock = api.trace_clock();
    api.note_inference(model, version, "");
    // A load begins before the body is read, but the timeout for the wait is in the body.
    let early = Early::of(api, model, version).map_err(Failure::plain);
    let early = early
        .and_then(|early| Ok((early, Framing::of(headers, body.size_hint().exact(), api.http_input_bytes_max())?)));
    let (early, framing) = match early {
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
    // From here on the server does not wait for the client. Nothing kept the model loaded while the body was read, so it may have been unloaded.
    let accept = || api.accept_found(early.found.as_ref(), target(model, version));
    let accepted =
        if early.load.is_some() { None } else { api.unless_loadable(model, accept()).map_err(Failure::plain)? };
    let ((under_way, admission), mut received) = match accepted {
        Some(accepted) => (accepted, inflated(api.account(), received, framing).await?),
        // Boxed, so that the future of every inference does not contain the space for the wait.
        None => Box::pin(accept_loaded(api, model, early.load, received, framing, accept)).await?,
    };
    let mut charge = received.take_charge();
    let json_len = framing.json_len(received.bytes().len())?;
    let (bytes_max, tensors_max) = (framing.bytes_max, admission.tensors_max());
    let (mut infer_request, rendering) = if json_len == 0 {
        read_raw_infer(received.tail(0), model, version, bytes_max)?
    } else if json_len > INLINE_WORK_BYTES_MAX {
        let (model, version) = (model.to_string(), version.to_string());
        aside(api.account(), move || read_text(&received, json_len, &model, &version, bytes_max, tensors_max)).await??
    } else {
        read_text(&received, json_len, model, version, bytes_max, tensors_max)?
    };
    forward_headers(api, headers, &mut infer_request)?;
    api.trace(&mut infer_request, Protocol::Http, clock, || trace_parent(api, headers));
    // Tensors that were JSON text are now numbers in blocks of their own, and the text is freed.
    if infer_request.inline_bytes() > charge.bytes().max(CHARGED_BYTES_MIN) {
        charge.resize(infer_request.inline_bytes());
    }
    Ok(Read { _under_way: under_way, admission, infer_request, rendering, charge })
}

/// The state of the model before the body is read: either the model was found, or its load was begun.
struct Early {
    found: Option<Found>,
    load: Option<Box<ModelLoad>>,
}

impl Early {
    fn of(api: &Api, model: &str, version: &str) -> Result<Early, Status> {
        let found = api.unless_loadable(model, api.find(target(model, version)))?;
        let load = found.is_none().then(|| api.begin_load(model)).transpose()?;
        Ok(Early { found, load: load.map(Box::new) })
    }
}

/// Accepts a request once its model is loaded. The timeout in the body bounds each wait.
async fn accept_loaded<T>(
    api: &Api,
    model: &str,
    load: Option<Box<ModelLoad>>,
    received: Received,
    framing: Framing,
    accept: impl Fn() -> Result<T, Status>,
) -> Result<(T, Received), Failure> {
    let received = inflated(api.account(), received, framing).await?;
    let json_len = framing.json_len(received.bytes().len())?;
    let timeout = move || {
        let timeout_us = read_timeout(received.bytes().get(..json_len).unwrap_or_default());
        (received, timeout_us)
    };
    let (received, timeout_us) =
        if json_len > INLINE_WORK_BYTES_MAX { aside(api.account(), timeout).await? } else { timeout() };
    if let Some(load) = load {
        let _loaded = load.within(timeout_us).await.map_err(Failure::plain)?;
        if let Some(accepted) = api.unless_loadable(model, accept()).map_err(Failure::plain)? {
            return Ok((accepted, received));
        }
    }
    // The model was unloaded while the body was read.
    let _loaded = api.wait_for_model(model, timeout_us).await.map_err(Failure::plain)?;
    Ok((accept().map_err(Failure::plain)?, received))
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

/// The body, inflated if it is compressed.
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
    /// Attaches `sending` to the last bytes of the answer. They drop it when they are sent, and the trace then notes the answer as sent.
    fn sent_by(mut self, sending: Option<Sending>) -> Rendered {
        if let Some(sending) = sending {
            let last = self.tensors.back_mut().unwrap_or(&mut self.json);
            *last = sending.keep(std::mem::take(last));
        }
        self
    }
}

/// Whether a front thread may write this answer: only few bytes must be written as text, or copied because other processes may still write to them. The
/// client chose the request's id, which is a part of the text.
fn is_light(response: &InferResponse, rendering: &Rendering) -> bool {
    let sent = response.outputs.iter().filter(|output| !output.placed);
    let work = sent.map(|output| match rendering.is_binary(&output.name) {
        false => output.data.len(),
        true if output.data.private_bytes().is_none() => output.data.len() / COPIED_BYTES,
        true => 0,
    });
    response.head_bytes() + work.sum::<usize>() <= INLINE_WORK_BYTES_MAX
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

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(id_bytes: usize, is_expected: bool) {
        // Each of these characters is six in the JSON.
        let response = InferResponse { id: "\u{1}".repeat(id_bytes).as_str().into(), ..InferResponse::default() };
        assert_eq!(is_light(&response, &Rendering::default()), is_expected);
    }

    #[test]
    fn an_answer_with_a_long_id_is_not_light() {
        check(0, true);
        check(1 << 10, true);
        check(INLINE_WORK_BYTES_MAX + 1, false);
    }
}
