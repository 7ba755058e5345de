//! How does a backend write a response?

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::datatype::DataType;
use crate::error::Error;
use crate::interface::{self as raw, Returned};
use crate::log::log_failure;
use crate::request::{Input, Request, copy};
use crate::text::to_c;

/// The answer to one request, until it is sent.
pub struct Response {
    raw: *mut raw::Response,
    /// The error of the first output that was not written completely.
    incomplete: Option<Error>,
}

impl Response {
    pub(crate) fn new(request: &Request) -> Result<Response, Error> {
        let mut response = null_mut();
        // SAFETY: the request was not released, because `Request` lives.
        unsafe { raw::TRITONBACKEND_ResponseNew(&raw mut response, request.raw()) }.check()?;
        Ok(Response { raw: response, incomplete: None })
    }

    /// Makes an output of this many bytes, which are then written in order. They may lie in the client's own memory.
    pub fn output(&mut self, name: &str, datatype: DataType, shape: &[i64], bytes: usize) -> Result<Output<'_>, Error> {
        let (text, mut output) = (to_c(name), null_mut());
        let (first, dims) = (shape.as_ptr(), shape.len() as u32);
        // SAFETY: the response was not sent, because `self` lives; name and shape live during the call, which copies them.
        let made = unsafe {
            raw::TRITONBACKEND_ResponseOutput(self.raw, &raw mut output, text.as_ptr(), datatype as u32, first, dims)
        };
        made.check()?;
        let (mut buffer, mut memory, mut memory_id): (*mut c_void, u32, i64) = (null_mut(), raw::CPU, 0);
        // SAFETY: the server just gave this output of the response, and all places outlive the call.
        let result = unsafe {
            raw::TRITONBACKEND_OutputBuffer(output, &raw mut buffer, bytes as u64, &raw mut memory, &raw mut memory_id)
        };
        result.check()?;
        if memory != raw::CPU && memory != raw::CPU_PINNED {
            return Err(Error::unsupported(format!("output '{name}' would lie in the memory of a GPU")));
        }
        if buffer.is_null() && bytes > 0 {
            return Err(Error::internal(format!("the server has no place for the {bytes} bytes of output '{name}'")));
        }
        Ok(Output { name: name.to_owned(), at: buffer.cast(), left: bytes, incomplete: &mut self.incomplete })
    }

    /// Makes an output of these bytes.
    pub fn put(&mut self, name: &str, datatype: DataType, shape: &[i64], bytes: &[u8]) -> Result<(), Error> {
        self.output(name, datatype, shape, bytes.len())?.write(bytes)
    }

    /// Sends it as the request's only response, with an error instead of outputs if there is one. Returns whether it was a success.
    pub(crate) fn send(self, filled: Result<(), Error>) -> bool {
        let filled = filled.and_then(|()| self.incomplete.clone().map_or(Ok(()), Err));
        let is_success = filled.is_ok();
        let error = filled.map_or_else(Error::into_returned, |()| Returned::SUCCESS);
        let raw = self.raw;
        // The server owns it from now on.
        std::mem::forget(self);
        // SAFETY: the response is sent once, because this function had it; the error stays ours.
        let sent = unsafe { raw::TRITONBACKEND_ResponseSend(raw, raw::FINAL, error.error()) };
        log_failure("a response cannot be sent", sent.check());
        error.delete();
        is_success
    }
}

impl Drop for Response {
    fn drop(&mut self) {
        // SAFETY: the response was not sent: `send` forgets what it sends.
        let deleted = unsafe { raw::TRITONBACKEND_ResponseDelete(self.raw) };
        log_failure("a response cannot be deleted", deleted.check());
    }
}

/// The memory of an output. It must be written completely. Otherwise the client gets an error, and not the old content of the memory.
pub struct Output<'a> {
    name: String,
    at: *mut u8,
    left: usize,
    incomplete: &'a mut Option<Error>,
}

impl Output<'_> {
    /// Writes the next bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        let to = self.take(bytes.len())?;
        // SAFETY: `take` gave a place of as many bytes, which the server promised until the response is sent, and it has not been.
        unsafe { copy(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// Copies the bytes of an input directly to the output.
    pub fn copy_from(&mut self, input: &Input<'_>) -> Result<(), Error> {
        input.each_part(|_, from, bytes| {
            let to = self.take(bytes)?;
            // SAFETY: the server promised `bytes` bytes at `from` until the request is released, and `take` gave a place of as many.
            unsafe { copy(from, to, bytes) };
            Ok(())
        })
    }

    /// The address of the next bytes.
    fn take(&mut self, bytes: usize) -> Result<*mut u8, Error> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or_else(|| {
            Error::internal(format!("output '{}' has {} bytes left, {bytes} are written", self.name, self.left))
        })?;
        let to = self.at;
        // The address may be NULL if there are no bytes.
        self.at = to.wrapping_add(bytes);
        Ok(to)
    }
}

impl Drop for Output<'_> {
    fn drop(&mut self) {
        if self.left > 0 && self.incomplete.is_none() {
            let text = format!("output '{}' lacks its last {} bytes", self.name, self.left);
            *self.incomplete = Some(Error::internal(text));
        }
    }
}
