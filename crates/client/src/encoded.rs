//! Which bytes is a request, for a program that sends the same one many times?

use bytes::Bytes;
use nerite_wire::proto::messages::ModelInferRequest;

use crate::{Request, http, message};

/// The body of a request over HTTP: the JSON, and the tensors that follow it. The length of the JSON is the value of the header
/// `Inference-Header-Content-Length`, which a request with tensors in the body must have.
///
/// ```
/// use nerite_client::{Request, Tensor, encoded};
///
/// let request = Request::new("simple").input(Tensor::from_slice("INPUT0", &[2], &[1i32, 2])?);
/// let (json, tensors) = encoded::http_body(&request);
/// assert!(json.starts_with('{'));
/// assert_eq!(tensors[0].len(), 8);
/// # Ok::<(), nerite_client::Error>(())
/// ```
pub fn http_body(request: &Request) -> (String, Vec<Bytes>) {
    http::body_of(request)
}

/// The message of a request over gRPC. Its tensors are shared, not copied.
pub fn grpc_message(request: &Request) -> ModelInferRequest {
    message::request(request, None)
}
