//! What does the handle of a backend stand for?

use std::ffi::{CString, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use super::{Message, c_text, object};
use crate::fault::Fault;
use crate::table::Handle;

/// `TRITONBACKEND_Backend`, and the memory manager that belongs to it.
pub struct BackendObject {
    /// Its name, for errors.
    pub owner: Arc<str>,
    /// Its name.
    pub name: CString,
    /// The directory of its library.
    pub directory: CString,
    /// The operator's settings for it.
    pub config: Handle<Message>,
    /// 0: each instance runs one batch at a time. 1: all instances of a device together do.
    pub execution_policy: AtomicU32,
    /// Whether `Initialize` is running. Some properties can be set only then.
    pub is_initializing: AtomicBool,
    state: AtomicPtr<c_void>,
}

object!(BackendObject, 5, "backend");

/// The parts of a new backend.
pub struct BackendParts<'a> {
    /// The name that configurations use.
    pub name: &'a str,
    /// The directory of its library.
    pub directory: &'a str,
    /// The operator's settings for it, as JSON.
    pub config: String,
}

impl BackendObject {
    /// A backend before its `Initialize`.
    pub fn new(parts: BackendParts<'_>) -> Result<BackendObject, Fault> {
        Ok(BackendObject {
            owner: parts.name.into(),
            name: c_text(parts.name),
            directory: c_text(parts.directory),
            config: Handle::to(Arc::new(Message::new(parts.config)))?,
            execution_policy: AtomicU32::new(0),
            is_initializing: AtomicBool::new(true),
            state: AtomicPtr::default(),
        })
    }

    /// The backend's own state.
    pub fn state(&self) -> &AtomicPtr<c_void> {
        &self.state
    }
}

impl Drop for BackendObject {
    fn drop(&mut self) {
        // The message was made with the object. Only a backend that deletes the server's objects has deleted it before.
        drop(self.config.take());
    }
}

/// `TRITONBACKEND_BackendAttribute`: properties that a backend sets.
#[derive(Default)]
pub struct BackendAttribute {
    is_parallel: AtomicBool,
}

object!(BackendAttribute, 6, "backend attribute");

impl BackendAttribute {
    /// Sets whether its instances may be made in parallel.
    pub fn set_parallel(&self, is_parallel: bool) {
        self.is_parallel.store(is_parallel, Ordering::Release);
    }

    /// Whether its instances may be made in parallel.
    pub fn is_parallel(&self) -> bool {
        self.is_parallel.load(Ordering::Acquire)
    }
}
