//! What does a function of the interface return?

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use nerite_request::Status;

use crate::fault::Fault;
use crate::objects::ErrorObject;
use crate::table::Handle;

/// NULL for a success, else an error that the caller owns. A panic must not unwind into C's frames.
pub fn answer(name: &str, call: impl FnOnce() -> Result<(), Fault>) -> Handle<ErrorObject> {
    let status = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return Handle::NULL,
        Ok(Err(fault)) => fault.into_status(name),
        Err(_) => Status::internal(format!("the server panicked in {name}")),
    };
    error(&status)
}

/// An error for a backend.
pub fn error(status: &Status) -> Handle<ErrorObject> {
    // If the table of errors is full, because the backend does not delete its errors, NULL is returned, which means success.
    Handle::to(Arc::new(ErrorObject::from(status))).unwrap_or_default()
}
