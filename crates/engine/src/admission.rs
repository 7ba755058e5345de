//! May a request be given to a model, and to which version of it?

use std::sync::Arc;

use nerite_backend::{InFlight, Job, now_ns};
use nerite_request::{AdmittedRequest, Peer, Reply, Request, SequenceId};

use crate::contract::{CheckedTensors, Contract, Prefix, Tensors};
use crate::deadline::end_in_time;
use crate::declared_shapes::Declared;
use crate::run_on::run_on;
use crate::served::Served;

/// A request's right to one model version. The version was looked up once, and stays loaded while this exists. The request counts as in flight.
pub struct Admission {
    // The fields are dropped in this order. The thread that unloads the version waits until no request is in flight, and must hold the last reference
    // then.
    served: Arc<Served>,
    in_flight: InFlight,
    /// Held until the request is submitted. A version that is replaced runs the requests that it admitted, and then ends.
    entering: InFlight,
    client: Option<Peer>,
}

impl Admission {
    /// An admission to a version that was found before. `None`: the version has ended since, and another one may have replaced it.
    pub fn to(served: &Arc<Served>) -> Option<Admission> {
        let entering = served.enter();
        // A thread that ends the version first marks it as retired, and then waits for the requests that were admitted.
        if served.is_retired() {
            return None;
        }
        Some(Admission { in_flight: served.begin(), served: Arc::clone(served), entering, client: None })
    }

    /// The same admission for a request of that client. A response that was made of memory that a client shares is cached for that client only.
    pub fn of_client(self, peer: &Peer) -> Admission {
        let client = self.served.is_cached().then(|| peer.clone());
        Admission { client, ..self }
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

    /// Runs a client's request that fits the contract, now or as soon as an instance is free. The answer comes through the request's own reply.
    pub fn submit(self, request: AdmittedRequest) {
        self.submit_as(request, Job::require_placed);
    }

    fn submit_as(self, request: AdmittedRequest, prepare: impl FnOnce(&mut Job)) {
        let Admission { in_flight, served, entering, client } = self;
        let mut job = Job::new(request, in_flight, now_ns());
        prepare(&mut job);
        if served.timeout_ends_runs() {
            end_in_time(&mut job);
        }
        if let Some(time_us) = served.runs_on_us().filter(|_| job.sequence().id != SequenceId::None) {
            run_on(&mut job, time_us, None);
        }
        served.submit(job, client.as_ref());
        drop(entering);
    }

    /// Checks the request against the contract and submits it. A refusal comes through the request's reply as well.
    pub fn check_and_submit(self, request: Request) {
        let Request { id, inputs, wanted, priority, timeout_us, sequence, client, parameters, cancel, mut reply } =
            request;
        let tensors = Tensors { inputs, wanted: wanted.into(), is_raw: false };
        match self.contract().check_all(Prefix(&id), tensors) {
            Ok(CheckedTensors { inputs, wanted, rows, .. }) => {
                reply.admitted(&wanted);
                if let Some(shapes) = self.served.declared_shapes().cloned() {
                    reply = Reply::through(Declared { shapes, reply });
                }
                // A model that asks others, and an ensemble, are answered without outputs that were not made, as in Triton.
                let request = AdmittedRequest {
                    id,
                    rows,
                    inputs,
                    wanted,
                    priority,
                    timeout_us,
                    sequence,
                    client,
                    parameters,
                    cancel,
                    reply,
                };
                self.submit_as(request, |_| ());
            }
            Err(status) => reply.refuse(status),
        }
    }
}
