//! How does HTTP answer calls that came to a port of another front end?

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Body;
use nerite_api::Api;
use nerite_listen::Progress;

use crate::dispatch::dispatch;
use crate::incoming::{Answering, Incoming};

/// Answers one call of the protocol, with the checks and limits of the HTTP port. `progress` belongs to the connection of the call.
pub async fn answer(
    api: Api,
    request: Request<hyper::body::Incoming>,
    progress: Arc<Progress>,
) -> Response<impl Body<Data = Bytes, Error = Infallible> + Send + 'static> {
    let request = request.map(|body| Incoming::new(body, Arc::clone(&progress)));
    dispatch(&api, request).await.map(|body| Answering::new(body, progress))
}
