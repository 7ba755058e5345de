//! Which status has each kind of failure in each protocol?

use nerite_request::Code;

/// The HTTP status of a failure.
pub fn http_status(code: Code) -> u16 {
    match code {
        Code::Unknown | Code::InvalidArg | Code::AlreadyExists | Code::Cancelled => 400,
        Code::Internal => 500,
        Code::NotFound => 404,
        Code::Unavailable => 503,
        Code::Unsupported => 501,
        Code::Unauthenticated => 401,
        Code::Denied => 403,
        Code::Exhausted => 429,
    }
}

/// The gRPC status of a failure.
pub fn grpc_status(code: Code) -> u32 {
    match code {
        Code::Cancelled => 1,
        Code::Unknown => 2,
        Code::InvalidArg => 3,
        Code::NotFound => 5,
        Code::AlreadyExists => 6,
        Code::Unsupported => 12,
        Code::Internal => 13,
        Code::Unavailable => 14,
        Code::Unauthenticated => 16,
        Code::Denied => 7,
        Code::Exhausted => 8,
    }
}
