//! In which order is an inference admitted, and to which model version?
//!
//! Every front end takes these steps, in this order. So a request with two faults gets the same error over every protocol, if its message has the right
//! form in each.
//!
//! 1. The client may make the call: headers of restricted categories, token, scopes, quotas (`tokens`).
//! 2. The server is not stopping, so it accepts inferences (`under_way`). A request that has arrived completely is counted here.
//! 3. The server's start has not failed, the token allows the model, the version is a number, the model version exists and is ready, and the call can
//!    carry its responses. The model is looked up once. If requests load models, the request waits here, and begins again with step 2.
//! 4. The model version counts it as in flight, and stays loaded.
//! 5. The tensors and parameters in the message have the right form. The form depends on the protocol, as in Triton: a region without a size is a fault
//!    over gRPC only, and JSON must hold as many values as the shape says. Over gRPC, an input that is given twice is reported before these faults.
//! 6. The regions and leases that the request names exist, and the tensors fit the model (`admit`).
//!
//! If a message is invalid before its model's name can be read, its error comes before step 2 or 3, because the model is not known then.

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

/// The model version that an inference names.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The name of the model.
    pub model: &'a str,
    /// The version as the client sent it; empty for the highest one.
    pub version: &'a str,
    /// The responses that its call can carry.
    pub responses: Responses,
}

/// How many responses a call can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Responses {
    /// One. A decoupled model is refused, with the error text of this protocol.
    One(Protocol),
    /// Any number.
    Any,
}

impl<'a> Target<'a> {
    /// The target of a call with one response.
    pub fn of_one(protocol: Protocol, model: &'a str, version: &'a str) -> Target<'a> {
        Target { model, version, responses: Responses::One(protocol) }
    }

    /// The target of a call with any number of responses.
    pub fn of_any(model: &'a str, version: &'a str) -> Target<'a> {
        Target { model, version, responses: Responses::Any }
    }
}

/// A model version that was found before the request had arrived completely. This does not keep the version loaded, so a slow sender does not delay
/// an unload.
pub struct Found(Weak<Served>);

/// A request's admission to its model.
pub struct Admission {
    pub(crate) model: nerite_engine::Admission,
    /// The client of the call, whose token allowed the model.
    pub(crate) caller: Option<Arc<Caller>>,
    pub(crate) under_way: UnderWay,
}

impl Api {
    /// The checks of an inference before its body is read, if the model's name is known before.
    pub fn find(&self, target: Target<'_>) -> Result<Found, Status> {
        self.check_accepting()?;
        Ok(Found(Arc::downgrade(&self.look_up(target)?)))
    }

    /// Admits a request that was taken on. The version in `found`, from an earlier [`Api::find`], is used unless it was unloaded or replaced meanwhile.
    pub fn admit(&self, under_way: UnderWay, target: Target<'_>, found: Option<&Found>) -> Result<Admission, Status> {
        let found = found.and_then(|found| found.0.upgrade());
        let mut served = found.map_or_else(|| self.look_up(target), Ok)?;
        for _ in 0..ADMISSIONS_MAX {
            if let Some(model) = nerite_engine::Admission::to(&served) {
                self.inner.engine.note_use(served.name(), self.peer());
                return Ok(Admission { model, caller: self.caller(), under_way });
            }
            served = self.look_up(target)?;
        }
        Err(Status::unavailable(format!("model '{}' is replaced again and again; ask once more", served.name())))
    }

    /// Takes on and admits a request that has arrived completely, whose model was found before.
    pub fn accept_found(&self, found: Option<&Found>, target: Target<'_>) -> Result<(UnderWay, Admission), Status> {
        let under_way = self.accept_inference()?;
        let admission = self.admit(under_way.again(), target, found)?;
        Ok((under_way, admission))
    }

    /// Takes on and admits a request whose model's name came with it.
    pub fn accept(&self, target: Target<'_>) -> Result<Admission, Status> {
        self.admit(self.accept_inference()?, target, None)
    }

    /// Step 3 of an admission.
    fn look_up(&self, target: Target<'_>) -> Result<Arc<Served>, Status> {
        let served = self.served(target.model, target.version)?;
        let Responses::One(protocol) = target.responses else { return Ok(served) };
        if !served.config().decoupled() {
            return Ok(served);
        }
        Err(Status::unsupported(match protocol {
            Protocol::Http => "HTTP end point doesn't support models with decoupled transaction policy",
            Protocol::Grpc => "ModelInfer RPC doesn't support models with decoupled transaction policy",
        }))
    }

    /// How many inputs and outputs a request for this model may name. Err: the request will not be admitted. A model that the request will load has the
    /// limit that holds for every model.
    pub fn tensors_max(&self, target: Target<'_>) -> Result<TensorsMax, Status> {
        let found = self.check_accepting().and_then(|()| self.look_up(target));
        let found = self.unless_loadable(target.model, found)?;
        Ok(found.map_or_else(TensorsMax::default, |served| tensors_max(&served)))
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

    /// The inputs of the model, as a client must send them.
    pub fn input_reports(&self) -> Vec<TensorReport> {
        input_reports(self.model.served())
    }
}

fn tensors_max(served: &Served) -> TensorsMax {
    TensorsMax::of_model(served.inputs().len(), served.outputs().len())
}
