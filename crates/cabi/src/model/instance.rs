//! How does a batch reach a compiled backend?

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nerite_backend::{Batch, Instance, Job, Times};
use nerite_request::{Code, Status};

use super::InitializedModel;
use crate::limits::RELEASE_PATIENCE;
use crate::objects::{InstanceObject, RequestObject};
use crate::table::Handle;

/// One instance, between its first function and its last.
pub(crate) struct CompiledInstance {
    pub object: Arc<InstanceObject>,
    pub handle: Handle<InstanceObject>,
    pub model: Arc<InitializedModel>,
}

impl Instance for CompiledInstance {
    /// The backend owns the requests from now on, unless it returns an error: then it did nothing with them.
    fn run(&mut self, batch: Batch) {
        let Batch { jobs, meter } = batch;
        self.object.set_meter(meter);
        let mut requests = Vec::with_capacity(jobs.len());
        for job in jobs {
            if job.is_cancelled() {
                job.refuse(Status::new(Code::Cancelled, ""));
                continue;
            }
            requests.extend(self.give(job));
        }
        if requests.is_empty() {
            return;
        }
        // The backend may change the list.
        let mut list = requests.clone();
        if let Err(status) = self.model.loaded.library.execute(self.handle, &mut list) {
            for request in requests {
                // One that it released all the same is answered by that.
                if let Ok(request) = request.take() {
                    request.path.fail(status.clone());
                }
            }
        }
    }
}

impl CompiledInstance {
    /// A handle for the request of a job; `None` if it was refused.
    fn give(&self, job: Job) -> Option<Handle<RequestObject>> {
        let model = &self.model.object;
        let times: Times = job.begin();
        let request = Arc::new(RequestObject::new(job, model, self.object.outstanding.add(), times)?);
        match Handle::to(Arc::clone(&request)) {
            Ok(handle) => Some(handle),
            Err(fault) => {
                request.path.fail(fault.told("TRITONBACKEND_ModelInstanceExecute"));
                None
            }
        }
    }
}

impl Drop for CompiledInstance {
    /// In Triton a request keeps its model until it is released, so what the backend has not given back is waited for. A backend that gives
    /// nothing back must not hold up others for ever: then its instance, its model and its library stay as they are until the process ends.
    fn drop(&mut self) {
        let is_abandoned = &self.model.is_abandoned;
        let longest = if is_abandoned.load(Ordering::Acquire) { Duration::ZERO } else { RELEASE_PATIENCE };
        let left = self.object.outstanding.wait(longest);
        if left > 0 {
            is_abandoned.store(true, Ordering::Release);
            log::error!(
                "backend '{}' never released {left} requests of instance '{}', or a response or factory of them, within {} s after their \
                 last responses: they stay, and so do the model and the backend's library; a backend must release each request and delete \
                 each factory",
                self.model.loaded.object.owner,
                self.object.name.to_string_lossy(),
                RELEASE_PATIENCE.as_secs()
            );
            std::mem::forget(Arc::clone(&self.model));
            return;
        }
        if let Err(status) = self.model.loaded.library.instance_finalize(self.handle) {
            log::error!("backend '{}': TRITONBACKEND_ModelInstanceFinalize: {status}", self.model.loaded.object.owner);
        }
        drop(self.handle.take());
    }
}
