//! How long is an answer charged to its client?

use bytes::Bytes;
use nerite_budget::{Charge, paid};
use nerite_wire::proto::Chunks;

use crate::limits::CHARGED_ANSWER_BYTES_MIN;

/// Adds a message to the charge of its call. The charge lasts until the socket has taken the last piece.
pub(crate) fn charge_answer(mut chunks: Chunks, mut charge: Charge) -> Chunks {
    let len: usize = chunks.iter().map(Bytes::len).sum();
    if len >= CHARGED_ANSWER_BYTES_MIN
        && let Some(last) = chunks.pop()
    {
        charge.grow(len);
        chunks.push(paid(last, charge));
    }
    chunks
}
