//! Which traits does a backend implement?

use crate::batch::Batch;
use crate::context::{BackendContext, InstanceContext, ModelContext};
use crate::error::Error;
use crate::request::Request;
use crate::response::Response;

/// A backend. It is made before its first model is loaded, and dropped after its last one.
pub trait Backend: Send + Sync + Sized + 'static {
    /// The type of its models.
    type Model: Model;

    /// Makes the backend. After an error, none of its models can be loaded.
    fn initialize(context: &BackendContext<'_>) -> Result<Self, Error>;

    /// Loads one version of a model. An error fails the load. Its text is the reason that users see.
    fn load(&self, context: &ModelContext<'_>) -> Result<Self::Model, Error>;
}

/// One version of a model. Instances that share its content hold an `Arc` of it.
pub trait Model: Send + Sync + 'static {
    /// The type of its instances.
    type Instance: Instance;

    /// Makes one instance. Several may be made at a time.
    fn instance(&self, context: &InstanceContext<'_>) -> Result<Self::Instance, Error>;
}

/// An instance of a model. It runs one batch at a time.
pub trait Instance: Send + 'static {
    /// Answers one request. The response is sent with the outputs that were written, or with the error.
    fn infer(&mut self, request: &Request, response: &mut Response) -> Result<(), Error>;

    /// Answers the requests of a batch, one by one. A backend that runs them together overrides this. A request without an answer gets an error, also
    /// after a panic.
    fn run(&mut self, mut batch: Batch) {
        for call in batch.take_calls() {
            call.answer(|request, response| self.infer(request, response));
        }
    }
}
