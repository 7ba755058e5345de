//! Are the server and a model ready?

use http::{Response, StatusCode};
use nerite_api::Api;

use super::CallResult;
use crate::reply::{Failure, Outgoing, PLAIN, bare, error};

/// Whether the server is live.
pub fn live(api: &Api) -> Response<Outgoing> {
    health(api, if api.live() { Ok(()) } else { Err(None) })
}

/// Whether all models are ready.
pub async fn ready(api: &Api) -> Response<Outgoing> {
    health(api, api.ready().await.map_err(|status| Some(status.message)))
}

/// Whether a model version is ready.
pub async fn model_ready(api: &Api, name: &str, version: &str) -> CallResult {
    let ready = api.model_ready(name, version).await.map_err(Failure::plain)?;
    Ok(if ready { bare(StatusCode::OK) } else { error(StatusCode::BAD_REQUEST, PLAIN, "Model version not ready") })
}

/// The answer to a probe. Triton's has no body; the reason in it is for people who look.
fn health(api: &Api, found: Result<(), Option<String>>) -> Response<Outgoing> {
    match found {
        _ if api.stopping() => error(StatusCode::SERVICE_UNAVAILABLE, PLAIN, "Server exiting"),
        Ok(()) => bare(StatusCode::OK),
        Err(None) => bare(StatusCode::BAD_REQUEST),
        Err(Some(why)) if api.draining() => error(StatusCode::SERVICE_UNAVAILABLE, PLAIN, &why),
        Err(Some(why)) => error(StatusCode::BAD_REQUEST, PLAIN, &why),
    }
}
