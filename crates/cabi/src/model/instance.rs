//! How does a batch reach a compiled backend?

use std::sync::Arc;

use nerite_backend::{Batch, Instance, Job, Times};
use nerite_request::{Code, Status};

use super::InitializedModel;
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
                self.take_back(request, &status);
            }
        }
    }
}

impl CompiledInstance {
    /// A handle for the request of a job; `None` if it was refused.
    fn give(&self, job: Job) -> Option<Handle<RequestObject>> {
        let model = &self.model.object;
        let times: Times = job.begin();
        let request = Arc::new(RequestObject::new(job, model, times)?);
        match Handle::to(Arc::clone(&request)) {
            Ok(handle) => {
                model.live.requests.add(handle);
                Some(handle)
            }
            Err(fault) => {
                request.path.fail(fault.told("TRITONBACKEND_ModelInstanceExecute"));
                None
            }
        }
    }

    fn take_back(&self, handle: Handle<RequestObject>, why: &Status) {
        self.model.object.live.requests.remove(handle);
        // One that it released all the same is answered by that.
        if let Ok(request) = handle.take() {
            request.path.fail(why.clone());
        }
    }
}

impl Drop for CompiledInstance {
    fn drop(&mut self) {
        if let Err(status) = self.model.loaded.library.instance_finalize(self.handle) {
            log::error!("backend '{}': TRITONBACKEND_ModelInstanceFinalize: {status}", self.model.loaded.object.owner);
        }
        drop(self.handle.take());
    }
}
