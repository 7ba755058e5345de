//! What is a backend to its own code?

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
    /// What the operator set for it.
    pub config: Handle<Message>,
    /// 0: an instance runs one batch after the other; 1: all of a device do.
    pub execution_policy: AtomicU32,
    /// Whether it is within `Initialize`, where alone some things may be set.
    pub is_initializing: AtomicBool,
    state: AtomicPtr<c_void>,
}

object!(BackendObject, 5, "backend");

/// What a backend is made of.
pub struct BackendParts<'a> {
    /// The name that configurations use.
    pub name: &'a str,
    /// The directory of its library.
    pub directory: &'a str,
    /// What the operator set for it, as JSON.
    pub config: String,
}

impl BackendObject {
    /// A backend that is about to be initialised.
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

    /// What the backend keeps.
    pub fn state(&self) -> &AtomicPtr<c_void> {
        &self.state
    }
}

impl Drop for BackendObject {
    fn drop(&mut self) {
        // It was made with the object, and only a backend that deletes what is not its own ends it before.
        drop(self.config.take());
    }
}

/// `TRITONBACKEND_BackendAttribute`: what a backend says of itself.
#[derive(Default)]
pub struct BackendAttribute {
    is_parallel: AtomicBool,
}

object!(BackendAttribute, 6, "backend attribute");

impl BackendAttribute {
    /// Its instances may be made side by side.
    pub fn set_parallel(&self, is_parallel: bool) {
        self.is_parallel.store(is_parallel, Ordering::Release);
    }

    /// Whether its instances may be made side by side.
    pub fn is_parallel(&self) -> bool {
        self.is_parallel.load(Ordering::Acquire)
    }
}
