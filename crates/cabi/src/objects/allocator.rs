//! What does a program say of where responses to its own requests go?

use super::object;

/// `TRITONSERVER_ResponseAllocator`. Backends that may ask other models make one when they start, whether they ever ask or not. Its functions are not
/// called yet, because this server does not take requests from compiled backends (`TRITONSERVER_ServerInferAsync`).
pub struct Allocator;

object!(Allocator, 15, "response allocator");
