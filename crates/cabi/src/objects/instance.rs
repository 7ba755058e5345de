//! What does the handle of an instance stand for?

use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr};
use std::sync::{Arc, PoisonError};

use nerite_backend::Meter;
use nerite_locks::Mutex;

use super::{Message, ModelObject, Outstanding, SaidMemory, object};
use crate::table::Handle;

/// `TRITONBACKEND_ModelInstance`.
pub struct InstanceObject {
    /// Its model.
    pub model: Handle<ModelObject>,
    /// Its name.
    pub name: CString,
    /// 1 for the host, 2 for a GPU, 3 for the model's own choice.
    pub kind: u32,
    /// The number of the GPU. 0 on the host.
    pub device: i32,
    /// The host policy.
    pub policy: Handle<Message>,
    /// The receiver of its statistics. Set by the first execution.
    pub meter: Mutex<Option<Arc<dyn Meter>>>,
    /// Whether it is being finalized. Then no function is called for it any more.
    pub is_ending: AtomicBool,
    /// Its requests that the backend has not released, and its readiness checks that have not returned.
    pub outstanding: Arc<Outstanding>,
    /// The memory that the backend reports.
    pub memory: Arc<SaidMemory>,
    /// The backend's own state.
    pub state: AtomicPtr<c_void>,
}

object!(InstanceObject, 9, "model instance");

impl InstanceObject {
    /// The receiver of its statistics.
    pub fn meter(&self) -> Option<Arc<dyn Meter>> {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the receiver of its statistics.
    pub fn set_meter(&self, meter: Arc<dyn Meter>) {
        *self.meter.lock().unwrap_or_else(PoisonError::into_inner) = Some(meter);
    }
}

impl Drop for InstanceObject {
    fn drop(&mut self) {
        // The message was made with the object.
        drop(self.policy.take());
    }
}
