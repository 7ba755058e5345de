//! How is one inference answered?

use std::sync::Arc;

use nerite_api::{Admission, Protocol, aside};
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
) -> Result<Chunks, Failure> {
    let Message { chain, charge } = message;
    let (admission, infer_request) = if chain.is_light() {
        read(server, &forwarded, chain)?
    } else {
        let server = Arc::clone(server);
        aside(move || read(&server, &forwarded, chain)).await??
    };
    let response = server.api.infer_holding(admission, infer_request, charge).await?;
    let chunks = if copies_little(&response) {
        encode_unary(response)?
    } else {
        aside(move || encode_unary(response)).await??
    };
    Ok(match compression {
        // Boxed: the room for it is not kept in every inference.
        Some(compression) => Box::pin(compression.apply(chunks)).await,
        None => chunks,
    })
}

fn read(server: &ServerState, forwarded: &Forwarded, message: Chain) -> Result<(Admission, InferRequest), Failure> {
    let message = {
        // The message's own references to its pieces replace the chain's.
        let chain = message;
        InferMessage::read_for(&chain, |model, version| server.api.tensors_max(model, version))?
    };
    let admission = server.api.admit_single(Protocol::Grpc, &message.model, &message.version)?;
    Ok((admission, to_infer_request(&server.api, forwarded, message)?))
}

/// Whether the thread that serves the connection may write this response: few bytes are copied because others may still write them.
pub(crate) fn copies_little(response: &InferResponse) -> bool {
    let sent = response.outputs.iter().filter(|output| !output.placed);
    let copied = sent.filter(|output| output.data.private_bytes().is_none()).map(|output| output.data.len());
    copied.sum::<usize>() <= COPIED_INLINE_BYTES_MAX
}
