//! How is the body of each call read, and its answer made?

pub mod control;
pub mod generate;
pub mod health;
pub mod infer;
pub mod metadata;
pub mod regions;
pub mod settings;

use http::Response;
use hyper::body::Body;
use nerite_api::Api;
use nerite_request::Status;
use nerite_wire::json::check_json_size;

use crate::incoming::Incoming;
use crate::limits::{CONTROL_BODY_BYTES_MAX, UNUSED_BODY_BYTES_MAX};
use crate::receive::{Expected, Received, discard, receive};
use crate::reply::{Failure, Outgoing};

/// The result of a call.
pub type CallResult = Result<Response<Outgoing>, Failure>;

/// Reads and drops a body that the call does not use, unless the body is long.
async fn pass_over(body: Incoming) {
    if body.size_hint().upper().is_some_and(|bytes| bytes <= UNUSED_BODY_BYTES_MAX) {
        discard(body).await;
    }
}

/// Reads the body of a call that is neither an inference nor a load. Such a body is short.
async fn read_control_body(api: &Api, body: Incoming) -> Result<Received, Failure> {
    let declared = body.size_hint().exact();
    let (bytes_max, is_flag) = json_limit(api, CONTROL_BODY_BYTES_MAX);
    let too_large = if is_flag { json_too_large } else { control_too_large };
    receive(body, Expected { declared, tail_at: None, bytes_max, too_large }, api.account()).await
}

/// Reads a body that is JSON from end to end.
async fn read_body(api: &Api, body: Incoming, bytes_max: u64) -> Result<Received, Failure> {
    let declared = body.size_hint().exact();
    receive(body, Expected { declared, tail_at: None, bytes_max, too_large: json_too_large }, api.account()).await
}

/// The limit of a JSON body of which the call takes at most `own_max` bytes, and whether it is that of `--http-max-input-size`.
fn json_limit(api: &Api, own_max: u64) -> (u64, bool) {
    let flag_max = api.http_input_bytes_max();
    (own_max.min(flag_max), flag_max < own_max)
}

fn control_too_large(size: u64, max: u64) -> Status {
    Status::invalid(format!("the body of this call has at most {max} bytes, got {size}; send only its own members"))
}

fn json_too_large(size: u64, max: u64) -> Status {
    check_json_size(size, max).err().unwrap_or_else(|| Status::invalid("the body is too large"))
}
