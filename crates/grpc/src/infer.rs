//! How is one inference answered?

use std::sync::Arc;

use nerite_api::{Admission, Protocol, Sending, Target, TraceClock, UnderWay, aside};
use nerite_request::{InferRequest, InferResponse, Recycled};
use nerite_wire::proto::{Chain, Chunks, InferMessage, encode_unary};

use crate::compress::Compression;
use crate::failure::Failure;
use crate::frame::Message;
use crate::infer_request::{Forwarded, to_infer_request};
use crate::limits::COPIED_INLINE_BYTES_MAX;
use crate::serve::ServerState;

/// ModelInfer: one request and one response.
pub(crate) async fn model_infer(
    server: &Arc<ServerState>,
    under_way: UnderWay,
    forwarded: Forwarded,
    message: Message,
    compression: Option<Compression>,
    clock: TraceClock,
) -> Result<Chunks, Failure> {
    let Message { chain, charge } = message;
    let read = if chain.is_light() {
        read(server, &under_way, forwarded, chain, clock)?
    } else {
        let (reader, under_way) = (Arc::clone(server), under_way.again());
        // Boxed, so that the future of every other inference does not include it.
        Box::pin(aside(server.api.account(), move || read(&reader, &under_way, forwarded, chain, clock))).await??
    };
    let (admission, infer_request) = match read {
        Read::Done(admission, infer_request) => (admission, infer_request),
        Read::Waits(waits) => Box::pin(waits.up(server, &under_way)).await?,
    };
    let sending = Sending::of(&infer_request, Protocol::Grpc);
    let response =
        Sending::begins_with(sending.as_ref(), server.api.infer_holding(admission, infer_request, charge).await)?;
    let chunks = if copies_little(&response) {
        encode_unary(response)?
    } else {
        aside(server.api.account(), move || encode_unary(response)).await??
    };
    let chunks = match compression {
        // Boxed, so that the future of every other inference does not include it.
        Some(compression) => Box::pin(compression.apply(chunks)).await,
        None => chunks,
    };
    Ok(sent_by(chunks, sending))
}

/// Attaches `sending` to the last bytes. They drop it when they are sent, and the trace then notes the response as sent.
pub(crate) fn sent_by(mut chunks: Chunks, sending: Option<Sending>) -> Chunks {
    if let (Some(last), Some(sending)) = (chunks.last_mut(), sending) {
        *last = sending.keep(std::mem::take(last));
    }
    chunks
}

/// A request that was decoded.
enum Read {
    Done(Admission, Recycled<InferRequest>),
    /// The model is not loaded yet.
    Waits(Box<Waits>),
}

/// A request that waits until its model is loaded on demand.
struct Waits {
    message: Recycled<InferMessage>,
    forwarded: Forwarded,
    clock: TraceClock,
}

impl Waits {
    /// The request, once its model is loaded.
    async fn up(
        self: Box<Self>,
        server: &ServerState,
        under_way: &UnderWay,
    ) -> Result<(Admission, Recycled<InferRequest>), Failure> {
        let Waits { message, forwarded, clock } = *self;
        let _loaded = server.api.wait_for_model(&message.model, message.timeout_us()).await?;
        let admission = server.api.admit(under_way.again(), target(&message.model, &message.version), None)?;
        Ok((admission, traced(server, &forwarded, message, clock)?))
    }
}

fn target<'a>(model: &'a str, version: &'a str) -> Target<'a> {
    Target::of_one(Protocol::Grpc, model, version)
}

fn read(
    server: &ServerState,
    under_way: &UnderWay,
    forwarded: Forwarded,
    message: Chain,
    clock: TraceClock,
) -> Result<Read, Failure> {
    let message = {
        // The decoded message has its own references to the pieces, so the chain is dropped.
        let chain = message;
        InferMessage::read_for(&chain, |model, version| {
            server.api.tensors_max(target(model, version)).map_err(Failure::from)
        })?
    };
    server.api.note_inference(&message.model, &message.version, &message.id);
    let admitted = server.api.admit(under_way.again(), target(&message.model, &message.version), None);
    let Some(admission) = server.api.unless_loadable(&message.model, admitted)? else {
        return Ok(Read::Waits(Box::new(Waits { message, forwarded, clock })));
    };
    Ok(Read::Done(admission, traced(server, &forwarded, message, clock)?))
}

/// Makes the request of a message. The request gets a trace if it is to be traced.
fn traced(
    server: &ServerState,
    forwarded: &Forwarded,
    message: Recycled<InferMessage>,
    clock: TraceClock,
) -> Result<Recycled<InferRequest>, Failure> {
    let mut infer_request = to_infer_request(&server.api, forwarded, message)?;
    server.api.trace(&mut infer_request, Protocol::Grpc, clock, || forwarded.parent());
    Ok(infer_request)
}

/// Whether a front thread may encode this response: only few bytes must be copied because other processes may still write to them.
pub(crate) fn copies_little(response: &InferResponse) -> bool {
    let sent = response.outputs.iter().filter(|output| !output.placed);
    let copied = sent.filter(|output| output.data.private_bytes().is_none()).map(|output| output.data.len());
    copied.sum::<usize>() <= COPIED_INLINE_BYTES_MAX
}
