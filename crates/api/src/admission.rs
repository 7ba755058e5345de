//! Which model does a request mean, and is it found once?
//!
//! Every front end takes the same steps: it asks whether the call is allowed, takes the inference on when all of it has arrived, and has it
//! admitted to its model. What is admitted is counted until its last response, and keeps its model loaded.

use std::sync::Arc;

use nerite_engine::Served;
use nerite_request::Status;
use nerite_request::limits::TensorsMax;

use crate::Api;
use crate::access::Protocol;
use crate::under_way::UnderWay;

/// A model version that was found before all of the request had come. It keeps nothing loaded: who sends slowly holds nothing up.
pub struct Found {
    protocol: Protocol,
    served: Arc<Served>,
}

/// A request's admission to its model.
pub struct Admission {
    pub(crate) model: nerite_engine::Admission,
    pub(crate) under_way: UnderWay,
}

impl Api {
    /// What can be said of an inference before its body is read: the model and version exist and are ready, and the
    /// protocol's single-response call can serve it (a decoupled model is refused in each protocol's own words).
    pub fn find_single(&self, protocol: Protocol, model: &str, version: &str) -> Result<Found, Status> {
        let served = self.served(model, version)?;
        if !served.config().decoupled() {
            return Ok(Found { protocol, served });
        }
        Err(Status::unsupported(match protocol {
            Protocol::Http => "HTTP end point doesn't support models with decoupled transaction policy",
            Protocol::Grpc => "ModelInfer RPC doesn't support models with decoupled transaction policy",
        }))
    }

    /// Admits a request whose model was found before. If that was unloaded or replaced meanwhile, the one that is there now is meant.
    pub fn admit_found(&self, found: Found, model: &str, version: &str) -> Result<Admission, Status> {
        let Found { protocol, mut served } = found;
        if served.is_retired() {
            served = self.find_single(protocol, model, version)?.served;
        }
        Ok(self.admit_to(served))
    }

    /// Admits a request to the version of the model that it names.
    pub fn admit(&self, model: &str, version: &str) -> Result<Admission, Status> {
        self.served(model, version).map(|served| self.admit_to(served))
    }

    /// As [`Api::admit`], for a call with one response.
    pub fn admit_single(&self, protocol: Protocol, model: &str, version: &str) -> Result<Admission, Status> {
        self.find_single(protocol, model, version).map(|found| self.admit_to(found.served))
    }

    fn admit_to(&self, served: Arc<Served>) -> Admission {
        let under_way = UnderWay::count(&self.0.under_way);
        Admission { model: nerite_engine::Admission::to(served), under_way }
    }

    /// How many inputs and outputs a request for this model may name; those of any model if there is no such one.
    pub fn tensors_max(&self, model: &str, version: &str) -> TensorsMax {
        self.served(model, version).map_or_else(|_| TensorsMax::default(), |served| tensors_max(&served))
    }
}

impl Admission {
    /// Whether the model is decoupled: its responses may interleave with those of other requests of a stream.
    pub fn is_decoupled(&self) -> bool {
        self.model.served().config().decoupled()
    }

    /// How many inputs and outputs a request for the model may name.
    pub fn tensors_max(&self) -> TensorsMax {
        tensors_max(self.model.served())
    }
}

fn tensors_max(served: &Served) -> TensorsMax {
    TensorsMax::of_model(served.inputs().len(), served.outputs().len())
}
