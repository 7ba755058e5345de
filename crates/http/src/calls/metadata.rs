//! Which metadata do the server and its models have?

use http::Response;
use nerite_api::{Api, aside};
use nerite_config::{encoded_bytes, to_json};
use nerite_wire::json::{write_model, write_server, write_statistics};

use super::CallResult;
use crate::limits::INLINE_CONFIG_BYTES_MAX;
use crate::reply::{Outgoing, json};

/// The server's metadata.
pub fn server(api: &Api) -> Response<Outgoing> {
    json(write_server(&api.server_report()))
}

/// A model's metadata.
pub async fn model(api: &Api, name: &str, version: &str) -> CallResult {
    let report = api.find_or_load(name, || api.model_report(name, version)).await?;
    Ok(json(write_model(&report)))
}

/// A model's configuration.
pub async fn config(api: &Api, name: &str, version: &str) -> CallResult {
    let config = api.find_or_load(name, || api.model_config(name, version)).await?;
    let text = if encoded_bytes(&config) <= INLINE_CONFIG_BYTES_MAX {
        to_json(&config)
    } else {
        aside(api.account(), move || to_json(&config)).await?
    };
    Ok(json(text.into_bytes()))
}

/// Statistics of one version, or of all versions of one model.
pub fn statistics(api: &Api, name: &str, version: &str) -> CallResult {
    Ok(json(write_statistics(&api.statistics(name, version)?)))
}

/// Statistics of all models. They are written on another thread than a front thread, because there may be many models.
pub async fn all_statistics(api: &Api) -> CallResult {
    let reader = api.clone();
    Ok(json(aside(api.account(), move || reader.statistics("", "").map(|all| write_statistics(&all))).await??))
}
