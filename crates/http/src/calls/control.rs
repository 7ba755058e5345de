//! Which models does the repository have, and how are they loaded and unloaded?

use http::HeaderMap;
use hyper::body::Body;
use nerite_api::{Api, aside, on_disk};
use nerite_request::Status;
use nerite_wire::json::{read_index, read_load, read_spooled_load, read_unload, write_index};

use super::{CallResult, json_limit, json_too_large, pass_over, read_control_body};
use crate::incoming::Incoming;
use crate::limits::INLINE_WORK_BYTES_MAX;
use crate::receive::{Text, spool};
use crate::reply::{Failure, done, json};
use crate::unread::answer_unread;

/// The repository index.
pub async fn index(api: &Api, body: Incoming) -> CallResult {
    let body = read_control_body(api, body).await?;
    let ready_only = read_index(body.bytes())?;
    let reader = api.clone();
    Ok(json(on_disk(api.account(), move || reader.index(ready_only).map(|entries| write_index(&entries))).await??))
}

/// Loads or reloads a model.
pub async fn load(api: &Api, headers: &HeaderMap, body: Incoming, name: &str) -> CallResult {
    let (bytes_max, is_flag) = match api.load_bytes_max() {
        Ok(own_max) => json_limit(api, own_max),
        Err(refused) => {
            pass_over(body).await;
            return Err(refused.into());
        }
    };
    let too_large =
        |bytes| Failure::from(if is_flag { json_too_large(bytes, bytes_max) } else { api.load_too_large(bytes) });
    if let Some(declared) = body.size_hint().exact().filter(|declared| *declared > bytes_max) {
        return Ok(answer_unread(api.flow(), headers, body, too_large(declared).into()).await);
    }
    let options = match spool(body, bytes_max, too_large, api.account()).await? {
        Text::Memory(text, _charge) if text.len() <= INLINE_WORK_BYTES_MAX => read_load(&text)?,
        Text::Memory(text, _charge) => aside(api.account(), move || read_load(&text)).await??,
        Text::Disk { file, len } => on_disk(api.account(), move || read_spooled_load(file, len)).await??,
    };
    api.load(name, options).await?;
    Ok(done())
}

/// Unloads a model.
pub async fn unload(api: &Api, body: Incoming, name: &str) -> CallResult {
    let body = read_control_body(api, body).await?;
    api.unload(name, read_unload(body.bytes())?).await?;
    Ok(done())
}

/// The error for a path that names a repository.
pub fn no_repository() -> Failure {
    Status::unsupported("'repository_name' specification is not supported").into()
}
