//! Which code has each error of the lower layers?

use nerite_request::{Code, Status};
use nerite_shm::{ErrorKind, LeaseError, LeaseErrorKind, ShmError};

/// Gives an error of shared memory its code. This is the only place that does so.
pub fn of_shm(error: ShmError) -> Status {
    let code = match error.kind() {
        ErrorKind::Disabled => Code::Unsupported,
        ErrorKind::Invalid => Code::InvalidArg,
        ErrorKind::Taken => Code::AlreadyExists,
        ErrorKind::Missing => Code::NotFound,
        ErrorKind::Internal => Code::Internal,
    };
    Status::new(code, error.to_string())
}

/// Gives an error of leases its code.
pub fn of_lease(error: LeaseError) -> Status {
    let code = match error.kind() {
        LeaseErrorKind::Invalid => Code::InvalidArg,
        LeaseErrorKind::Full => Code::Unavailable,
        LeaseErrorKind::Missing => Code::NotFound,
        LeaseErrorKind::Cancelled => Code::Cancelled,
        LeaseErrorKind::Internal => Code::Internal,
    };
    Status::new(code, error.to_string())
}
