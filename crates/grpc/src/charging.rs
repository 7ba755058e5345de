//! How long is an answer charged to its client?

use bytes::Bytes;
use nerite_budget::{Charge, paid};
use nerite_wire::proto::Chunks;

use crate::limits::CHARGED_ANSWER_BYTES_MIN;

/// Adds a long message to the charge of its call, which is then held until the socket has taken the last piece. For a short message, the charge is
/// dropped here.
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
