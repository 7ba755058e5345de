//! How does a model that generates text answer as flat JSON?

use http::request::Parts;
use hyper::body::Incoming;
use nerite_api::{Api, Protocol};
use nerite_request::Status;

use super::Outcome;

/// Reads flat JSON, asks, writes flat JSON.
pub async fn generate(api: &Api, _: &Parts, _: Incoming, model: &str, version: &str, _: bool) -> Outcome {
    api.check_infer(Protocol::Http, model, version)?;
    Err(Status::unsupported("the generate extension is not there yet").into())
}
