//! Which other requests does the metrics port answer?

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use nerite_api::Api;
use nerite_listen::Progress;

/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;
/// An answer that is being made.
pub type Answer = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// Answers requests that are not for the metrics.
pub trait Beside: Send + Sync {
    /// The answer, or the unchanged request if this does not answer it. The implementation records in `progress` when the server waits for the
    /// request's body and for the next request.
    fn answer(
        &self,
        api: &Api,
        request: Request<Incoming>,
        progress: &Arc<Progress>,
    ) -> Result<Answer, Box<Request<Incoming>>>;
}
