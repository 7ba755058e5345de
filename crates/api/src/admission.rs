//! Which model does a request mean, and is it found once?
//!
//! Every front end takes the same steps: it asks whether the call is allowed, takes the inference on when all of it has arrived, and has it
//! admitted to its model. What is admitted is counted until its last response, and keeps its model loaded.

use std::sync::{Arc, Weak};

use nerite_engine::{ADMISSIONS_MAX, Served};
use nerite_request::Status;
use nerite_request::limits::TensorsMax;
use nerite_request::report::TensorReport;

use crate::Api;
use crate::access::Protocol;
use crate::tensor_reports::input_reports;
use crate::under_way::UnderWay;

/// A model version that was found before all of the request had come. It keeps nothing loaded: who sends slowly holds nothing up.
pub struct Found {
    /// The protocol of a call with one response; `None` for one that takes any number.
    single: Option<Protocol>,
    served: Weak<Served>,
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
        let served = Arc::downgrade(&self.single(protocol, model, version)?);
        Ok(Found { single: Some(protocol), served })
    }

    /// As [`Api::find_single`], for a call that takes any number of responses, with the inputs as its client must send them.
    pub fn find_with_inputs(&self, model: &str, version: &str) -> Result<(Found, Vec<TensorReport>), Status> {
        self.check_running()?;
        let served = self.served(model, version)?;
        let inputs = input_reports(&served);
        Ok((Found { single: None, served: Arc::downgrade(&served) }, inputs))
    }

    fn single(&self, protocol: Protocol, model: &str, version: &str) -> Result<Arc<Served>, Status> {
        let served = self.served(model, version)?;
        if !served.config().decoupled() {
            return Ok(served);
        }
        Err(Status::unsupported(match protocol {
            Protocol::Http => "HTTP end point doesn't support models with decoupled transaction policy",
            Protocol::Grpc => "ModelInfer RPC doesn't support models with decoupled transaction policy",
        }))
    }

    /// Admits a request whose model was found before. If that was unloaded or replaced meanwhile, the one that is there now is meant.
    pub fn admit_found(&self, found: Found, model: &str, version: &str) -> Result<Admission, Status> {
        let Found { single, served } = found;
        let find = || match single {
            Some(protocol) => self.single(protocol, model, version),
            None => self.served(model, version),
        };
        self.admit_to(served.upgrade().map_or_else(find, Ok)?, find)
    }

    /// Admits a request to the version of the model that it names.
    pub fn admit(&self, model: &str, version: &str) -> Result<Admission, Status> {
        self.admit_to(self.served(model, version)?, || self.served(model, version))
    }

    /// As [`Api::admit`], for a call with one response.
    pub fn admit_single(&self, protocol: Protocol, model: &str, version: &str) -> Result<Admission, Status> {
        let find = || self.single(protocol, model, version);
        self.admit_to(find()?, find)
    }

    /// Admits a request to this version; if that has ended, to one that is found now.
    fn admit_to(
        &self,
        mut served: Arc<Served>,
        find: impl Fn() -> Result<Arc<Served>, Status>,
    ) -> Result<Admission, Status> {
        for _ in 0..ADMISSIONS_MAX {
            if let Some(model) = nerite_engine::Admission::to(&served) {
                self.0.engine.note_use(served.name(), self.peer());
                return Ok(Admission { model, under_way: UnderWay::count(&self.0.under_way) });
            }
            served = find()?;
        }
        Err(Status::unavailable(format!("model '{}' is replaced again and again; ask once more", served.name())))
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
