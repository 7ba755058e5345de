//! How is a generate call answered in flat JSON: with one object, or with an event for each response?

use std::collections::VecDeque;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{Response, StatusCode};
use nerite_api::codes::http_status;
use nerite_api::{Api, Protocol, Target, aside};
use nerite_budget::Account;
use nerite_request::{Cancel, ExactlyOne, Status};
use nerite_wire::json::{GenerateText, read_generate};
use tokio::sync::mpsc;

use super::infer::trace_parent;
use super::{CallResult, read_body};
use crate::encoding::request_encoding;
use crate::events::{self, Events, flat};
use crate::incoming::Incoming;
use crate::limits::INLINE_WORK_BYTES_MAX;
use crate::load_report::{LoadFormat, add_report};
use crate::receive::Received;
use crate::reply::{JSON, Outgoing, error, json};

const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");
const NOT_ONE: &str = "generate expects model to produce exactly 1 response, use generate stream for model that generates \
                       various number of responses";

/// Reads flat JSON, runs the request, and writes flat JSON: one answer, or with `stream` an event for each response.
#[expect(
    clippy::disallowed_methods,
    reason = "each response in it is charged to the account of the client, which bounds it"
)]
pub async fn generate(
    api: &Api,
    parts: &Parts,
    body: Incoming,
    model: &str,
    version: &str,
    stream: bool,
) -> CallResult {
    let clock = api.trace_clock();
    api.note_inference(model, version, "");
    let target = Target::of_any(model, version);
    let found = api.find_or_load(model, || api.find(target)).await?;
    let encoding = parts.headers.get(CONTENT_ENCODING).map(HeaderValue::as_bytes);
    if !matches!(request_encoding(encoding), Ok(None)) {
        return Err(Status::invalid("Unsupported content-encoding, only 'identity' is supported.").into());
    }
    let bytes_max = api.http_input_bytes_max();
    let mut body = read_body(api, body, bytes_max).await?;
    let mut charge = body.take_charge();
    // The model may have been unloaded while the body arrived, because nothing kept it loaded.
    let (_under_way, admission) = api.find_or_load(model, || api.accept_found(Some(&found), target)).await?;
    let inputs = admission.input_reports();
    let read = move |body: Received, model: &str, version: &str| {
        read_generate(&GenerateText { json: body.bytes(), inputs: &inputs, model, version, bytes_max })
    };
    let mut infer_request = if body.bytes().len() <= INLINE_WORK_BYTES_MAX {
        read(body, model, version)?
    } else {
        let (model, version) = (model.to_owned(), version.to_owned());
        aside(api.account(), move || read(body, &model, &version)).await??
    };
    api.trace(&mut infer_request, Protocol::Http, clock, || trace_parent(api, &parts.headers));
    // All strings of the body are kept in memory: inputs, and parameters that the model does not have as inputs.
    if infer_request.inline_bytes() > charge.bytes() {
        charge.resize(infer_request.inline_bytes());
    }
    let cancel = Cancel::new();
    let (to, from) = mpsc::unbounded_channel();
    let (account, mut held) = (api.account().clone(), Some(charge));
    let sink = move |response: nerite_request::Response| {
        if response.is_last() {
            drop(held.take());
        }
        let charge = account.charge(response.inline_bytes());
        // This fails only if the client disconnected, which has cancelled the request.
        let _ = to.send((response, charge));
    };
    api.begin(admission, infer_request, cancel.clone(), sink).await?;
    let mut events = Events::new(api.account(), from, cancel);
    let mut answer = if stream { many(api.account(), events).await } else { one(api.account(), &mut events).await };
    add_report(api, LoadFormat::of(&parts.headers), answer.headers_mut());
    Ok(answer)
}

/// The only response, or an error.
async fn one(account: &Account, events: &mut Events) -> Response<Outgoing> {
    let (mut one, mut charges) = (ExactlyOne::default(), None);
    let mut outcome = None;
    while let Some((response, charge)) = events.next().await {
        charges.get_or_insert(charge);
        outcome = one.take(response);
    }
    let charge = charges.unwrap_or_default();
    match outcome {
        Some(Ok(content)) => match flat(account, content, charge).await {
            // This charge is dropped here: `dispatch` charges the whole answer.
            Ok((text, _charge)) => json(text),
            Err(status) => error(code_of(Some(&status)), JSON, &status.message),
        },
        Some(Err(not_one)) => error(code_of(not_one.first_error.as_ref()), JSON, NOT_ONE),
        None => error(StatusCode::OK, JSON, NOT_ONE),
    }
}

/// All responses as events. The HTTP status of the answer is that of the first response.
async fn many(account: &Account, mut events: Events) -> Response<Outgoing> {
    let first = match events.next_content().await {
        Some((content, charge)) => Some(flat(account, content, charge).await.map_or_else(
            |status| (code_of(Some(&status)), events::failed(&status)),
            |(text, charge)| (StatusCode::OK, events::frame(text, charge)),
        )),
        None => None,
    };
    let (code, event) = first.unzip();
    let pieces = VecDeque::from_iter(event);
    let mut response = Response::new(Outgoing::Events { pieces, events: Box::new(events) });
    *response.status_mut() = code.unwrap_or(StatusCode::OK);
    response.headers_mut().insert(CONTENT_TYPE, EVENTS);
    response
}

fn code_of(error: Option<&Status>) -> StatusCode {
    let Some(status) = error else { return StatusCode::OK };
    StatusCode::from_u16(http_status(status.code)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}
