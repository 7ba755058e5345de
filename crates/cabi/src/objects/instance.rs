//! What is an instance to a backend's code?

use std::ffi::{CString, c_void};
use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, PoisonError};

use nerite_backend::Meter;
use nerite_locks::Mutex;

use super::{Message, ModelObject, Outstanding, object};
use crate::table::Handle;

/// `TRITONBACKEND_ModelInstance`.
pub struct InstanceObject {
    /// Whose instance it is.
    pub model: Handle<ModelObject>,
    /// Its name.
    pub name: CString,
    /// 1 for the host, 2 for a GPU, 3 for what the model itself chooses.
    pub kind: u32,
    /// Which GPU; 0 on the host.
    pub device: i32,
    /// What the operator set for where it runs.
    pub policy: Handle<Message>,
    /// Who is told of its executions, since the first one.
    pub meter: Mutex<Option<Arc<dyn Meter>>>,
    /// Its requests that the backend has.
    pub outstanding: Arc<Outstanding>,
    /// What the backend keeps.
    pub state: AtomicPtr<c_void>,
}

object!(InstanceObject, 9, "model instance");

impl InstanceObject {
    /// Who is told of its executions.
    pub fn meter(&self) -> Option<Arc<dyn Meter>> {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Executions are from now on told to this one.
    pub fn set_meter(&self, meter: Arc<dyn Meter>) {
        *self.meter.lock().unwrap_or_else(PoisonError::into_inner) = Some(meter);
    }
}

impl Drop for InstanceObject {
    fn drop(&mut self) {
        // It was made with the object.
        drop(self.policy.take());
    }
}
