//! How does HTTP answer calls that arrived at a port of another front end?

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use hyper::body::Body;
use nerite_api::Api;
use nerite_listen::Progress;

use crate::dispatch::dispatch;
use crate::incoming::{Answering, Incoming};
use crate::unread;

/// Answers one HTTP call, with the checks and limits of the HTTP port. `progress` belongs to the connection of the call.
pub async fn answer(
    api: Api,
    request: Request<hyper::body::Incoming>,
    progress: Arc<Progress>,
) -> Response<impl Body<Data = Bytes, Error = Infallible> + Send + 'static> {
    let request = request.map(|body| Incoming::new(body, Arc::clone(&progress)));
    dispatch(&api, request).await.map(|body| Answering::new(body, progress))
}

/// Returns a response that was made without reading the body of its request, once the client can read the response. The body is read and dropped, within
/// bounds.
pub async fn answer_unread<B>(
    api: &Api,
    headers: &HeaderMap,
    body: hyper::body::Incoming,
    progress: Arc<Progress>,
    response: Response<B>,
) -> Response<B> {
    unread::answer_unread(api.flow(), headers, Incoming::new(body, progress), response).await
}
