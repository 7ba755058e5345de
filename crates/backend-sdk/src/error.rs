//! How does a backend report a failure to the server?

use std::fmt;

use crate::interface::{self as raw, Returned};
use crate::text::{from_c, to_c};

/// The kind of a failure. Clients get their protocol's code for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    /// None of the other kinds.
    Unknown = 0,
    /// A fault of the backend.
    Internal = 1,
    /// The requested thing does not exist.
    NotFound = 2,
    /// The request, the model or its configuration is wrong.
    InvalidArg = 3,
    /// It is not possible now. The client may try again.
    Unavailable = 4,
    /// The backend does not support it.
    Unsupported = 5,
    /// The thing to be made exists already.
    AlreadyExists = 6,
    /// The client does not need the answer any more.
    Cancelled = 7,
}

impl Code {
    const ALL: [Code; 8] = [
        Code::Unknown,
        Code::Internal,
        Code::NotFound,
        Code::InvalidArg,
        Code::Unavailable,
        Code::Unsupported,
        Code::AlreadyExists,
        Code::Cancelled,
    ];
}

/// A failure, with a text for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    code: Code,
    text: String,
}

impl Error {
    /// A failure of this kind.
    pub fn new(code: Code, text: impl Into<String>) -> Error {
        Error { code, text: text.into() }
    }

    /// The request, the model or its configuration is wrong.
    pub fn invalid(text: impl Into<String>) -> Error {
        Error::new(Code::InvalidArg, text)
    }

    /// The backend does not support it.
    pub fn unsupported(text: impl Into<String>) -> Error {
        Error::new(Code::Unsupported, text)
    }

    /// A fault of the backend.
    pub fn internal(text: impl Into<String>) -> Error {
        Error::new(Code::Internal, text)
    }

    /// It is not possible now, usually for lack of memory.
    pub fn unavailable(text: impl Into<String>) -> Error {
        Error::new(Code::Unavailable, text)
    }

    /// Its kind.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Its text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The error in the form of the C interface.
    pub(crate) fn into_returned(self) -> Returned {
        let text = to_c(&self.text);
        // SAFETY: the text ends with a zero and lives during the call, which copies it.
        unsafe { raw::TRITONSERVER_ErrorNew(self.code as u32, text.as_ptr()) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}

impl Returned {
    /// Deletes the error, if it is one.
    pub(crate) fn delete(self) {
        if !self.error().is_null() {
            // SAFETY: an error that a function of the server made, which is ours alone and used no more.
            unsafe { raw::TRITONSERVER_ErrorDelete(self.error()) };
        }
    }

    /// The result of a call of the server's functions.
    pub(crate) fn check(self) -> Result<(), Error> {
        if self.error().is_null() {
            return Ok(());
        }
        // SAFETY: only functions of the server make what is not NULL, so this is an error of its.
        let code = unsafe { raw::TRITONSERVER_ErrorCode(self.error()) };
        // SAFETY: as above. The text belongs to the error.
        let text = unsafe { raw::TRITONSERVER_ErrorMessage(self.error()) };
        // SAFETY: the text ends with a zero by the interface, and the error is deleted only below.
        let text = unsafe { from_c(text) };
        self.delete();
        let code = Code::ALL.into_iter().find(|known| *known as u32 == code).unwrap_or(Code::Unknown);
        Err(Error { code, text })
    }
}
