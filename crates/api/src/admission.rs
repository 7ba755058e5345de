//! Which model version does a request go to?
//!
//! Every front end takes the same steps. It checks whether the call is allowed (`tokens`), registers the inference when it has arrived completely, and
//! admits it to its model. An admitted request has the token of its call, is counted until its last response, and keeps its model loaded.

use std::sync::{Arc, Weak};

use nerite_engine::{ADMISSIONS_MAX, Served};
use nerite_request::Status;
use nerite_request::limits::TensorsMax;
use nerite_request::report::TensorReport;

use crate::Api;
use crate::access::Protocol;
use crate::caller::Caller;
use crate::tensor_reports::input_reports;
use crate::under_way::UnderWay;

/// A model version that was found before the request had arrived completely. It does not keep the version loaded, so a slow sender delays no unload.
pub struct Found {
    /// The protocol of a call with one response. `None` for a call with any number of responses.
    single: Option<Protocol>,
    served: Weak<Served>,
}

/// A request's admission to its model.
pub struct Admission {
    pub(crate) model: nerite_engine::Admission,
    /// The client of the call, whose token allowed the model.
    pub(crate) caller: Option<Arc<Caller>>,
    pub(crate) under_way: UnderWay,
}

impl Api {
    /// The checks of an inference before its body is read: the model version exists and is ready, and a call with one response can serve it. A
    /// decoupled model is refused in each protocol's own words.
    pub fn find_single(&self, protocol: Protocol, model: &str, version: &str) -> Result<Found, Status> {
        let served = Arc::downgrade(&self.single(protocol, model, version)?);
        Ok(Found { single: Some(protocol), served })
    }

    /// As [`Api::find_single`], for a call with any number of responses. Also returns the inputs as a client must send them.
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

    /// Accepts and admits a request that has arrived completely, whose model was found before. If that version was unloaded or replaced meanwhile, the
    /// present one is used.
    pub fn take_on_found(&self, found: &Found, model: &str, version: &str) -> Result<(UnderWay, Admission), Status> {
        let under_way = self.take_on()?;
        let find = || match found.single {
            Some(protocol) => self.single(protocol, model, version),
            None => self.served(model, version),
        };
        let admission = self.admit_to(found.served.upgrade().map_or_else(find, Ok)?, find)?;
        Ok((under_way, admission))
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

    /// Admits a request to this version, or to the present one if this has ended.
    fn admit_to(
        &self,
        mut served: Arc<Served>,
        find: impl Fn() -> Result<Arc<Served>, Status>,
    ) -> Result<Admission, Status> {
        for _ in 0..ADMISSIONS_MAX {
            if let Some(model) = nerite_engine::Admission::to(&served) {
                self.inner.engine.note_use(served.name(), self.peer());
                let under_way = UnderWay::count(&self.inner.under_way);
                return Ok(Admission { model, caller: self.caller(), under_way });
            }
            served = find()?;
        }
        Err(Status::unavailable(format!("model '{}' is replaced again and again; ask once more", served.name())))
    }

    /// How many inputs and outputs a request for this model may name. For an unknown model, the limit of any model.
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
