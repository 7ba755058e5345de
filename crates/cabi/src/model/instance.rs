//! How is a batch passed to a compiled backend?

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use nerite_backend::{Batch, Instance, Job, Meter, Readiness, Times};
use nerite_request::{Client, Code, Status};

use super::readiness::InstanceReadiness;
use super::{InitializedModel, Turn};
use crate::limits::RELEASE_PATIENCE;
use crate::objects::{InstanceObject, RequestObject, kept_of};
use crate::run_client::running_for;
use crate::run_waits::bounding_waits;
use crate::table::Handle;

/// One instance, from its `ModelInstanceInitialize` to its `ModelInstanceFinalize`.
pub(crate) struct CompiledInstance {
    pub object: Arc<InstanceObject>,
    pub handle: Handle<InstanceObject>,
    pub model: Arc<InitializedModel>,
    /// The handles of the requests of the run. The backend gets this list, and may change it. It is kept so that the
    /// next run allocates none.
    pub given: Vec<Handle<RequestObject>>,
    pub list: Vec<Handle<RequestObject>>,
    /// The receiver of its statistics in the last run, which `object` has too.
    pub meter: Option<Arc<dyn Meter>>,
    /// Held during a run, if the instances of its GPU take turns.
    pub turn: Option<Turn>,
}

impl Instance for CompiledInstance {
    /// The backend owns the requests from now on, unless it returns an error. Then it must not have used them.
    fn run(&mut self, batch: Batch) {
        let Batch { jobs, meter } = batch;
        self.count_by(meter);
        // The turn comes before the requests begin. So a request that is cancelled meanwhile does not run, and the wait does not count as
        // computation.
        let _turn = self.turn.as_ref().map(|turn| turn.lock().unwrap_or_else(PoisonError::into_inner));
        let client = Client::of_all(jobs.iter().map(Job::client));
        self.given.clear();
        for job in jobs {
            if job.is_stopped() {
                job.refuse(Status::new(Code::Cancelled, ""));
                continue;
            }
            let request = self.give(job);
            self.given.extend(request);
        }
        if self.given.is_empty() {
            return;
        }
        self.list.clone_from(&self.given);
        let library = &self.model.loaded.library;
        if let Err(status) = running_for(client, || bounding_waits(|| library.execute(self.handle, &mut self.list))) {
            for request in self.given.drain(..) {
                // If the backend released the request although it returned an error, the release has answered it.
                if let Ok(request) = request.take() {
                    request.path.fail(status.clone());
                }
            }
        }
    }

    /// The requests that the backend has neither released nor answered completely.
    fn kept_requests(&self) -> Vec<String> {
        kept_of(&self.object.outstanding)
    }

    /// `None` if the backend has no function that reports readiness.
    fn readiness(&self) -> Option<Arc<dyn Readiness>> {
        let has_function = self.model.loaded.library.has_readiness_function();
        has_function
            .then(|| Arc::new(InstanceReadiness::new(&self.object, self.handle, &self.model)) as Arc<dyn Readiness>)
    }
}

impl CompiledInstance {
    /// Sets the receiver of its statistics. It is nearly always the same one, which takes no lock.
    fn count_by(&mut self, meter: Arc<dyn Meter>) {
        if !self.meter.as_ref().is_some_and(|known| Arc::ptr_eq(known, &meter)) {
            self.object.set_meter(Arc::clone(&meter));
            self.meter = Some(meter);
        }
    }

    /// A handle for the request of a job. `None` if there is no handle, and the request was refused.
    fn give(&self, job: Job) -> Option<Handle<RequestObject>> {
        let model = &self.model.object;
        let times: Times = job.begin();
        let request = Box::new(RequestObject::new(job, model, self.object.outstanding.add(), times)?);
        match Handle::try_to(request) {
            Ok(handle) => Some(handle),
            Err((fault, request)) => {
                request.path.fail(fault.into_status("TRITONBACKEND_ModelInstanceExecute"));
                None
            }
        }
    }
}

impl Drop for CompiledInstance {
    /// In Triton a request keeps its model until it is released, so this waits for unreleased requests, for a limited time. If the backend does not
    /// release them, its instance, its model and its library stay loaded until the process ends.
    fn drop(&mut self) {
        self.object.is_ending.store(true, Ordering::SeqCst);
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
