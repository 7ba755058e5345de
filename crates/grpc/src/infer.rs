//! How is one inference answered?

use http::HeaderMap;
use nerite_api::Protocol;
use nerite_wire::proto::{Chain, Chunks, InferMessage, encode_unary};

use crate::ask::to_ask;
use crate::compress::Compression;
use crate::failure::Failure;
use crate::serve::Front;

/// ModelInfer: one request, one response.
pub(crate) async fn model_infer(
    front: &Front,
    headers: HeaderMap,
    message: Chain,
    compression: Option<Compression>,
) -> Result<Chunks, Failure> {
    let message = {
        // The message's own references to its pieces replace the chain's.
        let chain = message;
        InferMessage::read(&chain)?
    };
    front.api.check_infer(Protocol::Grpc, &message.model, &message.version)?;
    let ask = to_ask(&front.api, &headers, message)?;
    drop(headers);
    let response = front.api.infer(ask).await;
    if let Some(error) = response.error {
        return Err(error.into());
    }
    let chunks = encode_unary(response)?;
    Ok(match compression {
        // Boxed: the room for it is not kept in every inference.
        Some(compression) => Box::pin(compression.apply(chunks)).await,
        None => chunks,
    })
}
