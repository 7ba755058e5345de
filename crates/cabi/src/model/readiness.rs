//! How does a compiled backend report whether an instance can take requests?
//!
//! The server calls `TRITONBACKEND_ModelInstanceReady` on a thread of its own, because the backend may take long, and the instance may be running
//! meanwhile, as in Triton. The engine checks an instance again only after it has answered, so there is at most one such thread for each instance.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use nerite_backend::{Readiness, ReadinessDone};
use nerite_request::Status;

use super::InitializedModel;
use crate::objects::InstanceObject;
use crate::table::Handle;

/// Checks one instance. It does not keep the model loaded.
pub(crate) struct InstanceReadiness {
    object: Arc<InstanceObject>,
    handle: Handle<InstanceObject>,
    model: Weak<InitializedModel>,
}

impl InstanceReadiness {
    /// The check of the instance of `model` with this object, which the backend knows by `handle`.
    pub fn new(object: &Arc<InstanceObject>, handle: Handle<InstanceObject>, model: &Arc<InitializedModel>) -> Self {
        InstanceReadiness { object: Arc::clone(object), handle, model: Arc::downgrade(model) }
    }

    /// Calls the backend. The instance is finalized only after this has returned, because its end waits until nothing is outstanding.
    fn call(&self) -> Result<(), Status> {
        let outstanding = self.object.outstanding.add();
        let ended = || Status::unavailable(format!("instance '{}' has ended", self.object.name.to_string_lossy()));
        // Either this sees that the instance ends, or the thread that ends it sees what is outstanding: all accesses are sequentially consistent.
        if self.object.is_ending.load(Ordering::SeqCst) {
            return Err(ended());
        }
        let model = self.model.upgrade().ok_or_else(ended)?;
        let answer = model.loaded.library.instance_ready(self.handle);
        // The drop may finalize the model, so `outstanding` is dropped after it.
        drop(model);
        drop(outstanding);
        answer
    }
}

impl Readiness for InstanceReadiness {
    fn check(self: Arc<Self>, done: ReadinessDone) {
        let done = Arc::new(nerite_locks::Mutex::new(Some(done)));
        let callback = Arc::clone(&done);
        let report = move |answer| {
            let taken = callback.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
            if let Some(done) = taken {
                done(answer);
            }
        };
        let (instance, report_here) = (Arc::clone(&self), report.clone());
        let spawned =
            std::thread::Builder::new().name("nerite-is-ready".to_owned()).spawn(move || report(instance.call()));
        if let Err(error) = spawned {
            report_here(Err(Status::unavailable(format!(
                "no thread to ask whether instance '{}' is ready: {error}; raise the limit on threads",
                self.object.name.to_string_lossy()
            ))));
        }
    }

    fn fault(&self) -> Option<Status> {
        None
    }
}
