//! Which models are there, and which should be loaded?

use nerite_api::Api;
use nerite_request::Status;
use nerite_wire::json::{read_index, read_load, read_unload, write_index};

use super::{Outcome, read_body};
use crate::incoming::Incoming;
use crate::limits::LOAD_BODY_BYTES_MAX;
use crate::reply::{Failure, done, json};

/// The repository index.
pub async fn index(api: &Api, body: Incoming) -> Outcome {
    let body = read_body(body, api.http_input_bytes_max()).await?;
    let ready_only = read_index(body.bytes())?;
    Ok(json(write_index(&api.index(ready_only)?)))
}

/// Loads a model, or loads it again.
pub async fn load(api: &Api, body: Incoming, name: &str) -> Outcome {
    let body = read_body(body, LOAD_BODY_BYTES_MAX).await?;
    api.load(name, read_load(body.bytes())?).await?;
    Ok(done())
}

/// Unloads a model.
pub async fn unload(api: &Api, body: Incoming, name: &str) -> Outcome {
    let body = read_body(body, api.http_input_bytes_max()).await?;
    api.unload(name, read_unload(body.bytes())?).await?;
    Ok(done())
}

/// A path that names a repository.
pub fn no_repository() -> Failure {
    Status::unsupported("'repository_name' specification is not supported").into()
}
