//! What does the handle of a backend stand for?

use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};

use nerite_config::proto::ModelInstanceGroup;
use nerite_locks::Mutex;

use super::{Message, c_text, object};
use crate::fault::Fault;
use crate::limits::PREFERRED_GROUPS_MAX;
use crate::table::Handle;

/// The execution policy by which one instance of a GPU runs at a time.
pub const DEVICE_BLOCKING: u32 = 1;

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
    /// 0: each instance runs one batch at a time. 1: all instances of a model on one GPU together do.
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
        // The message was made with the object. It is missing only if the backend deleted an object that is not its own.
        drop(self.config.take());
    }
}

/// `TRITONBACKEND_BackendAttribute`: properties that a backend sets.
#[derive(Default)]
pub struct BackendAttribute {
    is_parallel: AtomicBool,
    preferred: Mutex<Vec<ModelInstanceGroup>>,
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

    /// Adds an instance group that it prefers less than those before.
    pub fn prefer(&self, group: ModelInstanceGroup) -> Result<(), Fault> {
        let mut preferred = self.preferred.lock().unwrap_or_else(PoisonError::into_inner);
        if preferred.len() >= PREFERRED_GROUPS_MAX {
            return Err(Fault::misuse(format!("a backend prefers at most {PREFERRED_GROUPS_MAX} instance groups")));
        }
        preferred.push(group);
        Ok(())
    }

    /// The instance groups that it prefers, the best first.
    pub fn preferred(&self) -> Vec<ModelInstanceGroup> {
        self.preferred.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
