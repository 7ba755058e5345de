//! How are many inferences answered over one call?
//!
//! ```text
//!   client ─ Messages ─► InferRequest ─► api ─ sink ─► Mailbox ─► Order ─► encoded ─► client
//!                                 any thread   |  in the call's own task
//! ```
//!
//! Everything except the sinks runs when the HTTP/2 library polls for the next part of the answer. So no request is read while the client does not
//! read its answers, and everything ends with the call.

mod mailbox;
mod order;

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use nerite_api::{Admission, Api, Category, LoadedModel, Protocol, Sending, Target, TraceClock, aside, codes};
use nerite_budget::Charge;
use nerite_listen::Awaited;
use nerite_request::{Cancel, InferRequest, InferResponse, Recycled, Response, Status};
use nerite_wire::proto::{Chunks, InferMessage, StreamStatus, encode_stream};

use crate::begun::Begun;
use crate::charging::charge_answer;
use crate::compress::Compression;
use crate::deadline::Deadline;
use crate::failure::{Failure, ok_trailers};
use crate::frame::{Message, Messages};
use crate::infer::{copies_little, sent_by};
use crate::infer_request::{Forwarded, to_infer_request};
use crate::limits::REQUESTS_PER_STREAM_MAX;
use crate::serve::{Call, CallPhase, ServerState};
use mailbox::Mailbox;
use order::{Item, Order, ReadyResponse};

/// A ModelStreamInfer in progress.
pub(crate) struct StreamBody {
    server: Arc<ServerState>,
    call: Call,
    forwarded: Forwarded,
    compression: Option<Compression>,
    /// The message that is being compressed. Nothing else is sent meanwhile.
    compressing: Option<Pin<Box<dyn Future<Output = Chunks> + Send>>>,
    /// Whether the first error ends the stream with that status.
    strict: bool,
    /// Charge for the stream itself.
    _charge: Charge,
    messages: Option<Messages>,
    /// When the wait for the next request began, if requests were traced then.
    clock: TraceClock,
    deadline: Deadline,
    stop: Pin<Box<dyn Future<Output = ()> + Send>>,
    mailbox: Arc<Mailbox>,
    order: Order,
    /// The unsent rest of the message that is being sent.
    chunks: smallvec::IntoIter<[Bytes; 2]>,
    /// A request that waits for its model, or a large one that is being decoded or started on another thread. The next request is read after it, so
    /// that requests start in their order.
    beginning: Option<Aside<WorkDone>>,
    /// A large response that is being encoded on another thread.
    writing: Option<Aside<Result<Chunks, Status>>>,
    /// The error with which the stream will end.
    failure: Option<Failure>,
    /// Whether a request has arrived. The quotas counted the first request together with the call.
    has_requests: bool,
}

/// Work on another thread than a front thread.
type Aside<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The result of work on a large request.
enum WorkDone {
    Read(Result<Box<Incoming>, Failure>),
    Begun(u64, Result<(), Status>),
}

/// A request that was decoded. It may still be refused.
struct Incoming {
    item: Arc<Item>,
    admission: Result<Admission, Status>,
    infer_request: Result<Recycled<InferRequest>, Status>,
    /// Charge for the request.
    charge: Charge,
    /// Whether it has waited for its model, or must not wait for it because it is not allowed.
    has_waited: bool,
    /// The API for this request, if it differs from that of the call.
    own: Option<Api>,
}

impl Incoming {
    /// The request after the load of its model has ended with the result `loaded`.
    fn admitted_again(self, api: &Api, loaded: Result<LoadedModel, Status>) -> Incoming {
        let Item { id, model, version, cancel, trace, .. } = &*self.item;
        let admission = loaded.and_then(|_loaded| api.accept(Target::of_any(model, version)));
        let item = Arc::new(Item {
            id: id.clone(),
            model: model.clone(),
            version: version.clone(),
            decoupled: admission.as_ref().is_ok_and(Admission::is_decoupled),
            cancel: cancel.clone(),
            trace: trace.clone(),
        });
        Incoming { item, admission, has_waited: true, ..self }
    }

    fn read(
        server: &ServerState,
        forwarded: &Forwarded,
        message: Message,
        clock: TraceClock,
        (own, allowed): (Option<Api>, Result<(), Status>),
    ) -> Result<Incoming, Failure> {
        let Message { chain, charge } = message;
        let api = own.as_ref().unwrap_or(&server.api);
        let tensors_max = |model: &str, version: &str| api.tensors_max(Target::of_any(model, version));
        let message =
            InferMessage::read_for(&chain, |model, version| tensors_max(model, version).map_err(Failure::from))
                .inspect_err(|failure| api.note_status(failure.code()))?;
        drop(chain);
        api.note_inference(&message.model, &message.version, &message.id);
        let has_waited = allowed.is_err();
        let admission = allowed.and_then(|()| api.accept(Target::of_any(&message.model, &message.version)));
        let (id, model, version) = (message.id.clone(), message.model.clone(), message.version.clone());
        let mut infer_request = to_infer_request(api, forwarded, message);
        // A request for a model that is not available is not traced.
        if let (Ok(infer_request), Ok(_)) = (&mut infer_request, &admission) {
            api.trace(infer_request, Protocol::Grpc, clock, || forwarded.parent());
        }
        let trace = infer_request.as_ref().ok().and_then(|infer_request| infer_request.trace.clone());
        let decoupled = admission.as_ref().is_ok_and(Admission::is_decoupled);
        let item = Arc::new(Item { id, model, version, decoupled, cancel: Cancel::new(), trace });
        // A request that is not allowed counts as one that has waited, so that it does not wait for its model.
        Ok(Incoming { item, admission, infer_request, charge, has_waited, own })
    }
}

impl StreamBody {
    pub(crate) fn new(server: Arc<ServerState>, call: Call, begun: Begun) -> StreamBody {
        let Begun { messages, deadline, compression, forwarded, is_strict, charge } = begun;
        server.api.silence_call();
        StreamBody {
            compression,
            compressing: None,
            strict: is_strict,
            _charge: charge,
            messages: Some(messages),
            clock: server.api.trace_clock(),
            deadline,
            stop: Box::pin(server.stopped()),
            mailbox: Mailbox::new(server.options.response_pool_max, server.api.account()),
            order: Order::new(),
            chunks: Chunks::new().into_iter(),
            beginning: None,
            writing: None,
            failure: None,
            has_requests: false,
            server,
            call,
            forwarded,
        }
    }

    /// The next part of the answer: bytes, or at the end the status as `Err`.
    pub(crate) fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame<Bytes>, HeaderMap>> {
        loop {
            if let Some(chunk) = self.chunks.next() {
                return Poll::Ready(Ok(Frame::data(chunk)));
            }
            if self.compressing.is_some() || self.writing.is_some() {
                // Responses are not collected meanwhile, so that models wait as they do while a client reads nothing.
                if self.poll_written(cx).is_pending() {
                    if self.deadline.poll_passed(cx).is_ready() {
                        (self.compressing, self.writing) = (None, None);
                        self.fail(Failure::DEADLINE);
                        continue;
                    }
                    // The server does not wait for the client here.
                    self.call.progress.wait_for(Awaited::Nothing);
                    self.call.set_phase(CallPhase::Compute);
                    return Poll::Pending;
                }
                continue;
            }
            if let Some(ReadyResponse { item, response }) = self.order.next() {
                self.send(&item, response);
                continue;
            }
            if self.mailbox.collect(&mut self.order) {
                continue;
            }
            if self.messages.is_none() && self.beginning.is_none() && self.order.is_idle() {
                return Poll::Ready(Err(self.trailers()));
            }
            if self.deadline.poll_passed(cx).is_ready() {
                self.fail(Failure::DEADLINE);
                continue;
            }
            if self.poll_request(cx).is_pending() && self.mailbox.register(cx) {
                self.note_pending();
                return Poll::Pending;
            }
        }
    }

    /// Continues with the response that is being encoded or compressed. Ready when its state may have changed.
    fn poll_written(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(writing) = &mut self.writing {
            let written = ready!(writing.as_mut().poll(cx));
            self.writing = None;
            self.send_written(written);
        } else if let Some(compressing) = &mut self.compressing {
            let chunks = ready!(compressing.as_mut().poll(cx));
            self.compressing = None;
            self.chunks = charge_answer(chunks, self.server.api.account().charge(0)).into_iter();
        }
        Poll::Ready(())
    }

    /// Records what the stream waits for when it has nothing to send.
    fn note_pending(&self) {
        let is_incomplete = self.messages.as_ref().is_some_and(Messages::is_incomplete);
        self.call.progress.wait_for(if is_incomplete { Awaited::Body } else { Awaited::Nothing });
        self.call.set_phase(if self.order.is_idle() && self.beginning.is_none() {
            CallPhase::Receive
        } else {
            CallPhase::Compute
        });
    }

    /// Handles one request. Ready when the state may have changed.
    fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(beginning) = &mut self.beginning {
            let step = ready!(beginning.as_mut().poll(cx));
            self.beginning = None;
            match step {
                WorkDone::Read(Ok(incoming)) => self.admit(*incoming),
                WorkDone::Read(Err(failure)) => self.refuse_message(failure),
                WorkDone::Begun(number, Err(refusal)) => self.order.refuse(number, refusal),
                WorkDone::Begun(_, Ok(())) => {}
            }
            return Poll::Ready(());
        }
        let Some(messages) = &mut self.messages else { return Poll::Pending };
        if self.stop.as_mut().poll(cx).is_ready() {
            self.stop_reading(Failure::STOPPING);
            return Poll::Ready(());
        }
        if self.order.waiting() >= REQUESTS_PER_STREAM_MAX {
            return Poll::Pending;
        }
        match messages.poll_next(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(Some(message))) => {
                if let Err(failure) = self.begin(message) {
                    self.refuse_message(failure);
                }
            }
            Poll::Ready(Ok(None)) => self.messages = None,
            Poll::Ready(Err(failure)) => self.refuse_message(failure),
        }
        Poll::Ready(())
    }

    /// Starts one request. A refusal is sent in the order of responses. `Err` means that the message could not be decoded.
    fn begin(&mut self, message: Message) -> Result<(), Failure> {
        Category::Inference.begins();
        let now = self.server.api.trace_clock();
        let clock = mem::replace(&mut self.clock, now).or(now);
        let allowed = self.server.api.allow_next(!mem::replace(&mut self.has_requests, true));
        if message.chain.is_light() {
            let incoming = Incoming::read(&self.server, &self.forwarded, message, clock, allowed)?;
            self.admit(incoming);
            return Ok(());
        }
        let (api, server, forwarded) = (self.server.api.clone(), Arc::clone(&self.server), self.forwarded.clone());
        self.beginning = Some(Box::pin(async move {
            let read = aside(api.account(), move || Incoming::read(&server, &forwarded, message, clock, allowed)).await;
            WorkDone::Read(read.unwrap_or_else(|status| Err(status.into())).map(Box::new))
        }));
        Ok(())
    }

    /// Adds a request to the order and starts it, after the load of its model if that is needed. No other request is read meanwhile.
    fn admit(&mut self, incoming: Incoming) {
        if incoming.admission.is_ok() || incoming.has_waited || !self.server.api.must_wait_for(&incoming.item.model) {
            return self.admit_now(incoming);
        }
        let api = incoming.own.clone().unwrap_or_else(|| self.server.api.clone());
        self.beginning = Some(Box::pin(async move {
            let timeout_us = incoming.infer_request.as_ref().map_or(0, |infer_request| infer_request.timeout_us);
            let loaded = api.wait_for_model(&incoming.item.model, timeout_us).await;
            WorkDone::Read(Ok(Box::new(incoming.admitted_again(&api, loaded))))
        }));
    }

    fn admit_now(&mut self, Incoming { item, admission, infer_request, charge, own, .. }: Incoming) {
        let api = own.unwrap_or_else(|| self.server.api.clone());
        let number = self.order.admit(Arc::clone(&item));
        // If the request is not admitted, the client gets that error, and not one about the tensors.
        let admitted = admission.and_then(|admission| Ok((admission, infer_request?)));
        let begun = admitted.and_then(|(admission, infer_request)| {
            let sink = self.mailbox.sink(number, infer_request.empty_final, charge);
            let cancel = item.cancel.clone();
            if api.may_begin_here(&infer_request) {
                return api.infer_stream(admission, infer_request, cancel, sink);
            }
            let api = api.clone();
            self.beginning = Some(Box::pin(async move {
                let begun = api.begin(admission, infer_request, cancel, sink).await;
                if let Err(refusal) = &begun {
                    api.note_status(codes::grpc_status(refusal.code));
                }
                WorkDone::Begun(number, begun)
            }));
            Ok(())
        });
        if let Err(refusal) = begun {
            api.note_status(codes::grpc_status(refusal.code));
            self.order.refuse(number, refusal);
        }
    }

    /// Encodes one response. If the stream is strict, an error ends the stream. As in Triton, the stream goes on if the request was refused before it
    /// was queued.
    fn send(&mut self, item: &Item, response: order::StreamAnswer) {
        if let order::StreamAnswer::Response(response) = &response {
            self.mailbox.sent(response);
        }
        let encoded = match response {
            order::StreamAnswer::Refused(refusal)
            | order::StreamAnswer::Response(Response::Failed { error: refusal, refused: true, .. }) => {
                encode_error(InferResponse { id: item.id.clone(), ..InferResponse::default() }.into(), &refusal, None)
            }
            order::StreamAnswer::Response(response) => {
                let last = response.is_last();
                // An end without tensors only identifies its request.
                let response = match response.into_content().unwrap_or_else(|| Ok(item.as_response())) {
                    Ok(response) => response,
                    Err(error) if self.strict => return self.fail(error.into()),
                    Err(error) => return self.send_written(encode_error(item.as_response(), &error, Some(last))),
                };
                let (inline, otherwise) = (copies_little(&response), item.as_response());
                let sending = item.trace.as_ref().map(|trace| Sending::on(trace, Protocol::Grpc));
                if let Some(sending) = &sending {
                    sending.begins();
                }
                let write = move || {
                    encode_stream(response, StreamStatus { error: "", last: Some(last) })
                        .map(|chunks| sent_by(chunks, sending))
                        .or_else(|error| encode_error(otherwise, &error, Some(last)))
                };
                if !inline {
                    let written = aside(self.server.api.account(), write);
                    self.writing = Some(Box::pin(async move { written.await? }));
                    return;
                }
                write()
            }
        };
        self.send_written(encoded);
    }

    /// Compresses an encoded response, if the client accepts that, and sends it.
    fn send_written(&mut self, written: Result<Chunks, Status>) {
        match written {
            Ok(chunks) => match &self.compression {
                Some(compression) => self.compressing = Some(Box::pin(compression.clone().apply(chunks))),
                None => self.chunks = charge_answer(chunks, self.server.api.account().charge(0)).into_iter(),
            },
            Err(error) => self.fail(error.into()),
        }
    }

    /// Ends the stream because of an invalid message. If it could not be decoded, earlier requests are answered first.
    fn refuse_message(&mut self, failure: Failure) {
        if !failure.is_unreadable() {
            return self.fail(failure);
        }
        self.stop_reading(failure);
    }

    /// Reads no more messages. The stream ends with `failure` once earlier requests are answered.
    fn stop_reading(&mut self, failure: Failure) {
        self.messages = None;
        self.failure.get_or_insert(failure);
    }

    /// Ends the stream. Requests without an answer are cancelled, and nothing more is read or sent.
    fn fail(&mut self, failure: Failure) {
        self.messages = None;
        self.beginning = None;
        self.mailbox.close();
        self.order.cancel();
        self.failure.get_or_insert(failure);
    }

    fn trailers(&mut self) -> HeaderMap {
        let Some(failure) = mem::take(&mut self.failure) else { return ok_trailers() };
        let mut trailers = HeaderMap::with_capacity(2);
        failure.write(&mut trailers);
        trailers
    }
}

/// If the client closes the call, its requests are cancelled.
impl Drop for StreamBody {
    fn drop(&mut self) {
        self.mailbox.close();
        self.order.cancel();
    }
}

fn encode_error(response: Recycled<InferResponse>, error: &Status, last: Option<bool>) -> Result<Chunks, Status> {
    encode_stream(response, StreamStatus { error: &error.message, last })
}
