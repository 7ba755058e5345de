//! What are the trace and log settings?

use http::request::Parts;
use http::{HeaderMap, Method, Response};
use nerite_api::{Api, Changeable, Code, Protocol, Status};
use nerite_wire::json::{read_log_change, read_trace_change, write_log_settings, write_trace_settings};

use super::{CallResult, read_control_body};
use crate::incoming::Incoming;
use crate::reply::{Outgoing, forbidden, json};
use crate::unread::answer_unread;

/// Trace settings of the server (empty name) or of a model, changed first if the method is POST.
pub async fn trace(api: &Api, parts: &Parts, body: Incoming, name: &str) -> CallResult {
    let Parts { method, headers, .. } = parts;
    if method == Method::GET {
        return Ok(json(write_trace_settings(&api.trace_settings(name)?)));
    }
    if let Err(status) = api.allow_change(Protocol::Http, Changeable::Trace) {
        return Ok(refuse(api, status, headers, body).await);
    }
    // An unknown model is refused before the body is read.
    api.trace_settings(name)?;
    let body = read_control_body(api, body).await?;
    let settings = api.change_trace(name, read_trace_change(body.bytes())?).map_err(worded_for_http)?;
    Ok(json(write_trace_settings(&settings)))
}

/// The log settings, changed first if the method is POST.
pub async fn logging(api: &Api, parts: &Parts, body: Incoming) -> CallResult {
    let Parts { method, headers, .. } = parts;
    if method == Method::GET {
        return Ok(json(write_log_settings(&api.log_settings())));
    }
    if let Err(status) = api.allow_change(Protocol::Http, Changeable::Log) {
        return Ok(refuse(api, status, headers, body).await);
    }
    let body = read_control_body(api, body).await?;
    let settings = api.change_log(read_log_change(body.bytes())?).map_err(worded_for_http)?;
    Ok(json(write_log_settings(&settings)))
}

/// Refuses a change, with the answer that a call gets without the header that its category requires.
async fn refuse(api: &Api, status: Status, headers: &HeaderMap, body: Incoming) -> Response<Outgoing> {
    answer_unread(api.flow(), headers, body, forbidden(&status.into())).await
}

/// Two errors have different texts over HTTP and gRPC, and one of them a different code.
fn worded_for_http(status: Status) -> Status {
    if let Some(format) = status.message.strip_prefix("invalid argument for log_format, got: ") {
        return Status::new(Code::Unavailable, format!("invalid argument for --log_format, got: {format}"));
    }
    let count = "Unable to parse 'trace_count'. Expecting value >= -1, got:";
    match status.message.strip_prefix(count) {
        Some(rest) => Status::new(status.code, format!("{count}{}", rest.trim_start())),
        None => status,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(message: &str, code: Code, worded: &str) {
        let status = worded_for_http(Status::invalid(message));
        assert_eq!((status.code, status.message.as_str()), (code, worded));
    }

    #[test]
    fn two_texts_differ_from_grpcs() {
        let format = "invalid argument for --log_format, got: x";
        check("invalid argument for log_format, got: x", Code::Unavailable, format);
        let count = "Unable to parse 'trace_count'. Expecting value >= -1, got:-2";
        check("Unable to parse 'trace_count'. Expecting value >= -1, got: -2", Code::InvalidArg, count);
        check("another", Code::InvalidArg, "another");
    }
}
