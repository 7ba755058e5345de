//! How does a runtime that answers each job before it returns implement the contract of instances?

use nerite_request::{Code, Status};

use crate::{Batch, Instance, Job, Times};

/// A runtime that answers each job once, in order, before it returns.
pub trait Compute: Send {
    /// Reads `job`'s inputs and puts its outputs. Marks on `times` when the inputs were ready and when the model's work
    /// was done.
    fn compute(&mut self, job: &mut Job, times: &mut Times) -> Result<(), Status>;
}

/// A [`Compute`] as an [`Instance`]: one execution per job.
pub struct InOrder<C>(pub C);

impl<C: Compute> Instance for InOrder<C> {
    fn run(&mut self, batch: Batch) {
        let Batch { jobs, meter } = batch;
        for mut job in jobs {
            if job.is_stopped() {
                job.refuse(Status::new(Code::Cancelled, ""));
                continue;
            }
            let mut times = job.begin();
            let result = self.0.compute(&mut job, &mut times);
            times.mark_end();
            meter.batch(u64::from(job.rows().max(1)), &times);
            job.finish(result, times);
        }
    }
}
