//! What does a backend have to say?

use crate::batch::Batch;
use crate::context::{BackendContext, InstanceContext, ModelContext};
use crate::error::Error;
use crate::request::Request;
use crate::response::Response;

/// A backend, from the first model that needs it to the last.
pub trait Backend: Send + Sync + Sized + 'static {
    /// What [`Backend::load`] makes.
    type Model: Model;

    /// The first call. An error fails all its models.
    fn initialize(context: &BackendContext<'_>) -> Result<Self, Error>;

    /// Loads one version of a model. An error fails it, with its text as the reason.
    fn load(&self, context: &ModelContext<'_>) -> Result<Self::Model, Error>;
}

/// One version of a model. Instances that share what it has hold an `Arc` of it.
pub trait Model: Send + Sync + 'static {
    /// What runs batches.
    type Instance: Instance;

    /// Makes one instance. Several may be made at a time.
    fn instance(&self, context: &InstanceContext<'_>) -> Result<Self::Instance, Error>;
}

/// What runs one batch at a time.
pub trait Instance: Send + 'static {
    /// Answers one request: its response is sent with the outputs that were written, or with the error.
    fn infer(&mut self, request: &Request, response: &mut Response) -> Result<(), Error>;

    /// Answers the requests of a batch, each on its own. A backend that joins them overrides this. A request that
    /// is not answered gets an error, also after a panic.
    fn run(&mut self, mut batch: Batch) {
        for call in batch.take_calls() {
            call.answer(|request, response| self.infer(request, response));
        }
    }
}
