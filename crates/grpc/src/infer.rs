//! How is one inference answered?

use std::sync::Arc;

use nerite_api::{Protocol, aside};
use nerite_request::{Ask, Response};
use nerite_wire::proto::{Chain, Chunks, InferMessage, encode_unary};

use crate::ask::{Forwarded, to_ask};
use crate::compress::Compression;
use crate::failure::Failure;
use crate::frame::Message;
use crate::limits::COPIED_INLINE_BYTES_MAX;
use crate::serve::Front;

/// ModelInfer: one request, one response.
pub(crate) async fn model_infer(
    front: &Arc<Front>,
    forwarded: Forwarded,
    message: Message,
    compression: Option<Compression>,
) -> Result<Chunks, Failure> {
    let Message { chain, charge } = message;
    let ask = if chain.is_light() {
        read(front, &forwarded, chain)?
    } else {
        let front = Arc::clone(front);
        aside(move || read(&front, &forwarded, chain)).await??
    };
    let response = front.api.infer_holding(ask, charge).await;
    if let Some(error) = response.error {
        return Err(error.into());
    }
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

fn read(front: &Front, forwarded: &Forwarded, message: Chain) -> Result<Ask, Failure> {
    let message = {
        // The message's own references to its pieces replace the chain's.
        let chain = message;
        InferMessage::read_for(&chain, |model, version| front.api.tensors_max(model, version))?
    };
    front.api.check_infer(Protocol::Grpc, &message.model, &message.version)?;
    Ok(to_ask(&front.api, forwarded, message)?)
}

/// Whether the thread that serves the connection may write this response: few bytes are copied because others may still write them.
pub(crate) fn copies_little(response: &Response) -> bool {
    let sent = response.outputs.iter().filter(|output| !output.placed);
    let copied = sent.filter(|output| output.data.private_bytes().is_none()).map(|output| output.data.len());
    copied.sum::<usize>() <= COPIED_INLINE_BYTES_MAX
}
