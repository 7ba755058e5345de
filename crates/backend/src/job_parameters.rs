//! Does only the job have the parameters of a request, or are they shared?

use std::ops::Deref;
use std::sync::Arc;

use nerite_request::Parameters;

/// The parameters of a job.
#[derive(Debug)]
pub(crate) enum JobParameters {
    /// Only the job has them. This costs no allocation.
    Own(Parameters),
    /// A batching strategy may read them too.
    Shared(Arc<Parameters>),
}

impl JobParameters {
    pub(crate) fn share(&mut self) {
        if let JobParameters::Own(own) = self {
            *self = JobParameters::Shared(Arc::new(std::mem::take(own)));
        }
    }

    pub(crate) fn shared(&self) -> Arc<Parameters> {
        match self {
            JobParameters::Own(own) => Arc::new(own.clone()),
            JobParameters::Shared(shared) => Arc::clone(shared),
        }
    }
}

impl Deref for JobParameters {
    type Target = Parameters;

    fn deref(&self) -> &Parameters {
        match self {
            JobParameters::Own(own) => own,
            JobParameters::Shared(shared) => shared,
        }
    }
}

impl Default for JobParameters {
    fn default() -> JobParameters {
        JobParameters::Own(Parameters::new())
    }
}
