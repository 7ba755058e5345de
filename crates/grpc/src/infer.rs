//! How is one inference answered?

use std::sync::Arc;

use nerite_api::{Admission, Protocol, Sending, TraceClock, aside};
use nerite_request::{InferRequest, InferResponse};
use nerite_wire::proto::{Chain, Chunks, InferMessage, encode_unary};

use crate::compress::Compression;
use crate::failure::Failure;
use crate::frame::Message;
use crate::infer_request::{Forwarded, to_infer_request};
use crate::limits::COPIED_INLINE_BYTES_MAX;
use crate::serve::ServerState;

/// ModelInfer: one request, one response.
pub(crate) async fn model_infer(
    server: &Arc<ServerState>,
    forwarded: Forwarded,
    message: Message,
    compression: Option<Compression>,
    clock: TraceClock,
) -> Result<Chunks, Failure> {
    let Message { chain, charge } = message;
    let read = if chain.is_light() {
        read(server, forwarded, chain, clock)?
    } else {
        let server = Arc::clone(server);
        aside(move || read(&server, forwarded, chain, clock)).await??
    };
    let (admission, infer_request) = match read {
        Read::Done(admission, infer_request) => (admission, infer_request),
        Read::Waits(waits) => Box::pin(waits.up(server)).await?,
    };
    let (infer_request, sending) = Sending::of(infer_request, Protocol::Grpc);
    let response =
        Sending::begins_with(sending.as_ref(), server.api.infer_holding(admission, infer_request, charge).await)?;
    let chunks = if copies_little(&response) {
        encode_unary(response)?
    } else {
        aside(move || encode_unary(response)).await??
    };
    let chunks = match compression {
        // Boxed: the room for it is not kept in every inference.
        Some(compression) => Box::pin(compression.apply(chunks)).await,
        None => chunks,
    };
    Ok(sent_by(chunks, sending))
}

/// The same bytes, noted as sent when the last are.
pub(crate) fn sent_by(mut chunks: Chunks, sending: Option<Sending>) -> Chunks {
    if let (Some(last), Some(sending)) = (chunks.last_mut(), sending) {
        *last = sending.keep(std::mem::take(last));
    }
    chunks
}

/// A request that was read.
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for every request")]
enum Read {
    Done(Admission, InferRequest),
    /// Its model is not up.
    Waits(Box<Waits>),
}

/// A request whose model is loaded on demand.
struct Waits {
    message: InferMessage,
    forwarded: Forwarded,
    clock: TraceClock,
}

impl Waits {
    /// The request once its model is up.
    async fn up(self: Box<Self>, server: &ServerState) -> Result<(Admission, InferRequest), Failure> {
        let Waits { message, forwarded, clock } = *self;
        server.api.wait_for_model(&message.model).await?;
        let admission = server.api.admit_single(Protocol::Grpc, &message.model, &message.version)?;
        Ok((admission, traced(server, &forwarded, message, clock)?))
    }
}

fn read(server: &ServerState, forwarded: Forwarded, message: Chain, clock: TraceClock) -> Result<Read, Failure> {
    let message = {
        // The message's own references to its pieces replace the chain's.
        let chain = message;
        InferMessage::read_for(&chain, |model, version| server.api.tensors_max(model, version))?
    };
    if server.api.must_wait_for(&message.model) {
        return Ok(Read::Waits(Box::new(Waits { message, forwarded, clock })));
    }
    let admission = server.api.admit_single(Protocol::Grpc, &message.model, &message.version)?;
    Ok(Read::Done(admission, traced(server, &forwarded, message, clock)?))
}

/// The request, with its trace if it has one.
fn traced(
    server: &ServerState,
    forwarded: &Forwarded,
    message: InferMessage,
    clock: TraceClock,
) -> Result<InferRequest, Failure> {
    let mut infer_request = to_infer_request(&server.api, forwarded, message)?;
    server.api.trace(&mut infer_request, Protocol::Grpc, clock);
    Ok(infer_request)
}

/// Whether the thread that serves the connection may write this response: few bytes are copied because others may still write them.
pub(crate) fn copies_little(response: &InferResponse) -> bool {
    let sent = response.outputs.iter().filter(|output| !output.placed);
    let copied = sent.filter(|output| output.data.private_bytes().is_none()).map(|output| output.data.len());
    copied.sum::<usize>() <= COPIED_INLINE_BYTES_MAX
}
