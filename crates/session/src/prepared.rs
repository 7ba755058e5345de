//! How are inferences prepared, and called many times?

use std::sync::Arc;
use std::time::Instant;

use nerite_api::{Admission, CallError, Target};
use nerite_request::{Numbered, Status, TraceContext};
use nerite_wire::proto::ExpectedResponse;
use nerite_wire::proto::session::v1;
use v1::server_message::Answer;

use crate::answer::{CallOutcome, FAILED_PRECONDITION, error_packet, failure};
use crate::gathered::Gathered;
use crate::inference::{read, trace_parent};
use crate::limits::{CALLS_BETWEEN_CLOCKS, CALLS_SLICE, DESCRIPTORS_MAX, PREPARED_BYTES, PREPARED_CALLS_MAX};
use crate::prepared_table::Prepared;
use crate::responses::{AnswerRoute, Answers, Expected};
use crate::session::Session;
use crate::socket::Packet;
use crate::waiting::{Preparation, RemainingWork};

/// Why a call was not started.
enum NotBegun {
    Stale(String),
    Refused(Status),
}

impl Session {
    /// Reads and checks an inference for later calls, once its model is loaded.
    pub(crate) async fn prepare(&mut self, id: u64, prepare: v1::Prepare) -> Result<CallOutcome, Status> {
        self.prepared.check_capacity()?;
        let v1::Prepare { infer, expected } = prepare;
        let v1::Infer { request, leased_outputs, .. } =
            infer.ok_or_else(|| Status::invalid("Prepare says no inference"))?;
        if leased_outputs.len() > DESCRIPTORS_MAX {
            return Err(Status::invalid(format!(
                "{} outputs are to be placed in leases, at most {DESCRIPTORS_MAX} descriptors fit in an answer",
                leased_outputs.len()
            )));
        }
        // The names of a request take more memory than their bytes in the packet.
        let bytes = PREPARED_BYTES + 4 * (request.len() + expected.len());
        let expected = if expected.is_empty() { None } else { Some(Arc::new(ExpectedResponse::read(expected)?)) };
        let message = read(request, &self.api)?;
        let preparation = Preparation { message, leased_outputs, expected, bytes };
        let (model, version) = (&preparation.message.model, &preparation.message.version);
        let found = self.find_unless_waiting(model, || self.api.accept(Target::of_any(model, version)))?;
        let Some(admission) = found else {
            let model = model.clone();
            self.wait_for(&model, id, bytes, RemainingWork::Prepare(Box::new(preparation)))?;
            return Ok(CallOutcome::UnderWay);
        };
        self.add_prepared(preparation, admission).await
    }

    /// Prepares an inference that waited for its model.
    pub(crate) async fn finish_preparation(
        &mut self,
        preparation: Preparation,
        loaded: Result<(), Status>,
    ) -> Result<CallOutcome, Status> {
        loaded?;
        // Other inferences may have been prepared during the wait.
        self.prepared.check_capacity()?;
        let target = Target::of_any(&preparation.message.model, &preparation.message.version);
        let admission = self.api.accept(target)?;
        self.add_prepared(preparation, admission).await
    }

    async fn add_prepared(&mut self, preparation: Preparation, admission: Admission) -> Result<CallOutcome, Status> {
        let Preparation { mut message, leased_outputs, expected, bytes } = preparation;
        let request = message.take_infer_request(|_| Ok(()))?;
        drop(message);
        let charge = self.api.account().charge(bytes);
        let request = if self.scope.may_begin_here(&request, &leased_outputs) {
            self.scope.prepare(&admission, request, leased_outputs)?
        } else {
            let scope = Arc::clone(&self.scope);
            self.api.begin_aside(move || scope.prepare(&admission, request, leased_outputs)).await??
        };
        let (in_flight, route) = (Arc::clone(&self.in_flight), AnswerRoute::Direct(Arc::clone(&self.outbox)));
        let answers = Arc::new(Answers { in_flight, route, expected: Expected::Each(expected) });
        let handle = self.prepared.add(request, answers, charge);
        Ok(CallOutcome::from(Answer::Prepared(v1::Prepared { handle })))
    }

    /// Calls prepared inferences. Each is answered under its own id, independent of the others.
    pub(crate) async fn call_prepared(&mut self, id: u64, calls: v1::CallPrepared) -> Result<(), Status> {
        let v1::CallPrepared { handle, further, trace } = calls;
        let count = 1 + further.len();
        if count > PREPARED_CALLS_MAX {
            return Err(Status::invalid(format!(
                "a packet asks for {count} prepared inferences, at most {PREPARED_CALLS_MAX} are allowed"
            )));
        }
        if id == 0 || id.checked_add(count as u64).is_none() {
            return Err(Status::invalid("an inference needs an id other than 0: its answer repeats it"));
        }
        let parent = trace_parent(&self.api, trace);
        if further.is_empty() {
            let prepared = self.prepared.find(handle);
            let answers = prepared.as_ref().map(|prepared| Arc::clone(&prepared.answers));
            let refusals = AnswerRoute::Direct(Arc::clone(&self.outbox));
            self.begin((id, handle, prepared), parent, answers.as_ref(), &refusals).await;
            return Ok(());
        }
        let handles = std::iter::once(handle).chain(further);
        let calls: Vec<_> = handles.map(|handle| (handle, self.prepared.find(handle))).collect();
        let expected = |(_, prepared): &(u64, Option<Arc<Prepared>>)| prepared.as_ref()?.expected().cloned();
        let expected = Expected::Of { first_id: id, calls: calls.iter().map(expected).collect() };
        let gathered = Arc::new(Gathered::new(count, &self.outbox, self.api.account()));
        // All calls of the packet share one value.
        let (in_flight, route) = (Arc::clone(&self.in_flight), AnswerRoute::Gathered(Arc::clone(&gathered)));
        let answers = Arc::new(Answers { in_flight, route, expected });
        let mut slice_start = Instant::now();
        for (at, (id, (handle, prepared))) in (id..).zip(calls).enumerate() {
            // The first call was counted with the packet.
            if let Some(refused) = (at > 0).then(|| self.scope.allow_next().err()).flatten() {
                if let Some(prepared) = prepared {
                    prepared.request.note(&self.api);
                }
                let bytes = nerite_wire::proto::session::encode_answer(&failure(id, &refused));
                gathered.send(Packet { bytes, ..Packet::default() }, true);
                continue;
            }
            self.begin((id, handle, prepared), parent.clone(), Some(&answers), &answers.route).await;
            if at % CALLS_BETWEEN_CLOCKS == 0 && slice_start.elapsed() > CALLS_SLICE {
                tokio::task::yield_now().await;
                slice_start = Instant::now();
            }
        }
        Ok(())
    }

    async fn begin(
        &mut self,
        (id, handle, prepared): (u64, u64, Option<Arc<Prepared>>),
        parent: Option<Box<TraceContext>>,
        answers: Option<&Arc<Answers>>,
        refusals: &AnswerRoute,
    ) {
        let begun = match (prepared, answers) {
            (Some(prepared), Some(answers)) => self.try_begin(id, prepared, parent, answers).await,
            _ => Err(NotBegun::Stale("this session has none of that handle".to_owned())),
        };
        let packet = match begun {
            Ok(()) => return,
            Err(NotBegun::Refused(status)) => {
                self.api.note_session_refusal(&status);
                Packet { bytes: nerite_wire::proto::session::encode_answer(&failure(id, &status)), ..Packet::default() }
            }
            Err(NotBegun::Stale(why)) => {
                self.api.note_session_code(FAILED_PRECONDITION);
                self.prepared.forget(handle);
                let text = format!("prepared inference {handle} is stale: {why}; nothing was run, prepare it again");
                error_packet(id, FAILED_PRECONDITION, text)
            }
        };
        refusals.send(packet, true);
    }

    async fn try_begin(
        &self,
        id: u64,
        prepared: Arc<Prepared>,
        parent: Option<Box<TraceContext>>,
        answers: &Arc<Answers>,
    ) -> Result<(), NotBegun> {
        let cancel = self.in_flight.begin(id, 0).map_err(NotBegun::Refused)?;
        let (answers, to) = (Arc::clone(answers), Arc::<Answers>::clone(answers));
        let numbered = Some(Numbered { to, number: id });
        let sink = move |response, placed| answers.send(id, response, placed);
        let begun = if self.scope.may_call_here(&prepared.request) {
            self.scope.call(&prepared.request, parent, cancel, numbered, sink)
        } else {
            let scope = Arc::clone(&self.scope);
            let call = move || scope.call(&prepared.request, parent, cancel, numbered, sink);
            let checked = self.api.begin_aside(call).await;
            checked.map_err(CallError::from).flatten()
        };
        // After a refusal the sink is never called.
        begun.map_err(|error| {
            self.in_flight.release(id);
            self.in_flight.end();
            match error {
                CallError::Stale(why) => NotBegun::Stale(why),
                CallError::Refused(status) => NotBegun::Refused(status),
            }
        })
    }
}
