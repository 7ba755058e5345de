//! Are the server and a model ready?

use http::{Response, StatusCode};
use nerite_api::Api;

use super::CallResult;
use crate::reply::{Failure, Outgoing, PLAIN, bare, error};

/// Whether the server is live.
pub fn live(api: &Api) -> Response<Outgoing> {
    health(api, api.live())
}

/// Whether all models are ready.
pub async fn ready(api: &Api) -> Response<Outgoing> {
    health(api, api.ready().await)
}

/// Whether a model version is ready.
pub async fn model_ready(api: &Api, name: &str, version: &str) -> CallResult {
    let ready = api.model_ready(name, version).await.map_err(Failure::plain)?;
    Ok(if ready { bare(StatusCode::OK) } else { error(StatusCode::BAD_REQUEST, PLAIN, "Model version not ready") })
}

fn health(api: &Api, well: bool) -> Response<Outgoing> {
    match well {
        _ if api.stopping() => error(StatusCode::SERVICE_UNAVAILABLE, PLAIN, "Server exiting"),
        true => bare(StatusCode::OK),
        false => bare(StatusCode::BAD_REQUEST),
    }
}
