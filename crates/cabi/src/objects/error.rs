//! How are errors passed between a backend and the server?

use std::ffi::CString;

use nerite_request::{Code, Status};

use super::{c_text, object};

/// `TRITONSERVER_Error`.
pub struct ErrorObject {
    /// Its kind.
    pub code: Code,
    /// Its text.
    pub message: CString,
}

object!(ErrorObject, 1, "error");

impl From<&Status> for ErrorObject {
    fn from(status: &Status) -> ErrorObject {
        ErrorObject { code: status.code, message: c_text(&status.message) }
    }
}

impl ErrorObject {
    /// The error for a client.
    pub fn status(&self) -> Status {
        Status::new(self.code, self.message.to_string_lossy())
    }
}

/// The number of a kind of error in the interface.
pub fn code_number(code: Code) -> u32 {
    match code {
        Code::Unknown => 0,
        Code::Internal => 1,
        Code::NotFound => 2,
        Code::InvalidArg => 3,
        // Triton's interface has no numbers for a refused or limited client.
        Code::Unavailable | Code::Unauthenticated | Code::Denied | Code::Exhausted => 4,
        Code::Unsupported => 5,
        Code::AlreadyExists => 6,
        Code::Cancelled => 7,
    }
}

/// The kind of error of this number.
pub fn code_of(number: u32) -> Code {
    match number {
        1 => Code::Internal,
        2 => Code::NotFound,
        3 => Code::InvalidArg,
        4 => Code::Unavailable,
        5 => Code::Unsupported,
        6 => Code::AlreadyExists,
        7 => Code::Cancelled,
        _ => Code::Unknown,
    }
}
