//! May a request be given to a model, and to which version of it?

use std::sync::Arc;

use nerite_backend::{InFlight, Job, now_ns};
use nerite_request::{AdmittedRequest, Peer, Request};

use crate::contract::{CheckedTensors, Contract, Prefix, Tensors};
use crate::served::Served;

/// A request's right to one model version, which was found once and stays loaded while this lives. It is counted as in flight.
pub struct Admission {
    // In this order: whoever unloads the version waits for the count, and is then its last holder.
    served: Arc<Served>,
    in_flight: InFlight,
    /// Until it is submitted: a version takes what it admitted, and ends afterwards.
    entering: InFlight,
    asker: Option<Peer>,
}

impl Admission {
    /// To a version that was found before. `None`: it has ended meanwhile, and there may be another in its place.
    pub fn to(served: &Arc<Served>) -> Option<Admission> {
        let entering = served.enter();
        // Whoever ends the version says so first, and waits for those that enter then.
        if served.is_retired() {
            return None;
        }
        Some(Admission { in_flight: served.begin(), served: Arc::clone(served), entering, asker: None })
    }

    /// The same for a request of that client. What comes of memory that a client shares is kept for its own requests only.
    pub fn of_asker(self, peer: &Peer) -> Admission {
        let asker = self.served.is_cached().then(|| peer.clone());
        Admission { asker, ..self }
    }

    /// The version.
    pub fn served(&self) -> &Arc<Served> {
        &self.served
    }

    /// What the version asks of the request.
    pub fn contract(&self) -> Contract<'_> {
        Contract {
            model: self.served.name(),
            batch_max: self.served.config().max_batch_size,
            inputs: self.served.inputs(),
            outputs: self.served.outputs(),
        }
    }

    /// Runs a request that fits the contract, now or as soon as an instance is free. The answer comes through the request's own reply.
    pub fn submit(self, request: AdmittedRequest) {
        let Admission { in_flight, served, entering, asker } = self;
        served.submit(Job::new(request, in_flight, now_ns()), asker.as_ref());
        drop(entering);
    }

    /// Checks the request against the contract and submits it. A refusal comes through the request's reply as well.
    pub fn ask(self, request: Request) {
        let Request { id, inputs, wanted, priority, timeout_us, sequence, parameters, cancel, mut reply } = request;
        let tensors = Tensors { inputs, wanted: wanted.into(), is_raw: false };
        match self.contract().check_all(Prefix(&id), tensors) {
            Ok(CheckedTensors { inputs, wanted, rows }) => {
                self.submit(AdmittedRequest {
                    id,
                    rows,
                    inputs,
                    wanted,
                    priority,
                    timeout_us,
                    sequence,
                    parameters,
                    cancel,
                    reply,
                });
            }
            Err(status) => reply.refuse(status),
        }
    }
}
