//! How does a large tensor get its place while it is still arriving?
//!
//! A tensor that comes in many pieces must be copied into one block in the end. Doing so piece by piece keeps each piece
//! in the cache, and gives its memory back before the next one comes. So the outermost fields are followed as they arrive,
//! and a large `raw_input_contents` gets its aligned block as soon as its length is known. To the reader of the message
//! that block is one piece among others, which it takes without a copy.

use bytes::{Buf, Bytes};
use nerite_memory::{Reason, Slot};

use super::Chain;

/// Smaller tensors are left in their pieces: they are copied while they are in the cache anyway.
const AHEAD_BYTES_MIN: usize = 256 << 10;
/// Larger tensors are left in their pieces until all are there: a client's word alone does not reserve more memory.
const AHEAD_BYTES_MAX: usize = 512 << 20;
const RAW_INPUT_CONTENTS: u64 = 7;

const _: () = assert!(AHEAD_BYTES_MIN < AHEAD_BYTES_MAX && AHEAD_BYTES_MAX < super::MESSAGE_BYTES_MAX);

/// Collects the pieces of one ModelInferRequest.
#[derive(Debug, Default)]
pub struct Gather {
    chain: Chain,
    follow: Follow,
}

/// What is known of the bytes to come.
#[derive(Debug, Default)]
enum Follow {
    /// A tag, of which these low bits have come.
    Tag(Varint),
    /// The length of this field.
    Length { raw: bool, so_far: Varint },
    /// A value that is a number of unknown length.
    Number,
    /// Bytes that stay in their pieces.
    Pass(usize),
    /// Bytes that belong into this block, at this offset.
    Fill(Slot, usize),
    /// Nothing: the message is small, or not one that can be followed.
    #[default]
    Nothing,
}

#[derive(Clone, Copy, Debug, Default)]
struct Varint {
    value: u64,
    shift: u32,
}

impl Varint {
    /// Takes one byte; the value once it is complete, `Err` when it is too long.
    fn take(&mut self, byte: u8) -> Result<Option<u64>, ()> {
        if self.shift > 63 {
            return Err(());
        }
        self.value |= u64::from(byte & 0x7f) << self.shift;
        self.shift += 7;
        Ok((byte < 0x80).then_some(self.value))
    }
}

impl Gather {
    /// Expects a message of `len` bytes; 0 where that is not known beforehand.
    pub fn new(len: usize) -> Gather {
        let follow = if len < AHEAD_BYTES_MIN { Follow::Nothing } else { Follow::Tag(Varint::default()) };
        Gather { chain: Chain::new(), follow }
    }

    /// Adds the next piece.
    pub fn push(&mut self, mut piece: Bytes) {
        while !piece.is_empty() {
            match &mut self.follow {
                Follow::Nothing => return self.chain.push(piece),
                Follow::Pass(left) => {
                    let step = piece.len().min(*left);
                    *left -= step;
                    if *left == 0 {
                        self.follow = Follow::Tag(Varint::default());
                    }
                    self.chain.push(piece.split_to(step));
                }
                Follow::Fill(slot, at) => {
                    let step = piece.len().min(slot.len() - *at);
                    slot.write(*at, &piece[..step], Reason::InlineRequest).expect("the step ends within the slot");
                    *at += step;
                    piece.advance(step);
                    if *at == slot.len() {
                        self.finish_slot();
                    }
                }
                Follow::Tag(_) | Follow::Length { .. } | Follow::Number => self.follow_heads(&mut piece),
            }
        }
    }

    /// The pieces of the whole message.
    pub fn finish(mut self) -> Chain {
        // A message that ends inside a tensor lied about a length; the reader says so, given what there is.
        if let Follow::Fill(slot, at) = &mut self.follow {
            slot.truncate(*at);
            self.finish_slot();
        }
        self.chain
    }

    fn finish_slot(&mut self) {
        if let Follow::Fill(slot, _) = std::mem::replace(&mut self.follow, Follow::Tag(Varint::default())) {
            self.chain.push(slot.filled().into_buffer().into_bytes());
        }
    }

    /// Reads tags and lengths at the front of `piece` and puts them into the chain, up to the first bytes to pass or fill.
    fn follow_heads(&mut self, piece: &mut Bytes) {
        let mut at = 0;
        while let (Some(&byte), Follow::Tag(_) | Follow::Length { .. } | Follow::Number) = (piece.get(at), &self.follow)
        {
            at += 1;
            let ahead = piece.len() - at;
            self.follow = match std::mem::take(&mut self.follow) {
                Follow::Tag(mut tag) => match tag.take(byte) {
                    Ok(Some(tag)) => after_tag(tag),
                    Ok(None) => Follow::Tag(tag),
                    Err(()) => Follow::Nothing,
                },
                Follow::Length { raw, mut so_far } => match so_far.take(byte) {
                    Ok(Some(len)) => after_length(raw, len, ahead),
                    Ok(None) => Follow::Length { raw, so_far },
                    Err(()) => Follow::Nothing,
                },
                _ if byte < 0x80 => Follow::Tag(Varint::default()),
                _ => Follow::Number,
            };
        }
        self.chain.push(piece.split_to(at));
    }
}

fn after_tag(tag: u64) -> Follow {
    match tag & 7 {
        0 => Follow::Number,
        1 => Follow::Pass(8),
        2 => Follow::Length { raw: tag >> 3 == RAW_INPUT_CONTENTS, so_far: Varint::default() },
        5 => Follow::Pass(4),
        _ => Follow::Nothing,
    }
}

/// `ahead` bytes of the field are at hand in the same piece.
fn after_length(raw: bool, len: u64, ahead: usize) -> Follow {
    let Ok(len) = usize::try_from(len) else { return Follow::Nothing };
    if len == 0 {
        return Follow::Tag(Varint::default());
    }
    if raw && len > ahead && (AHEAD_BYTES_MIN..=AHEAD_BYTES_MAX).contains(&len) {
        return Follow::Fill(Slot::heap(len), 0);
    }
    Follow::Pass(len)
}

#[cfg(test)]
mod tests {
    use bytes::Buf;
    use prost::Message;

    use super::super::messages::ModelInferRequest;
    use super::*;

    fn gather(message: &[u8], step: usize) -> Chain {
        let mut gather = Gather::new(message.len());
        message.chunks(step).for_each(|piece| gather.push(Bytes::copy_from_slice(piece)));
        gather.finish()
    }

    #[track_caller]
    fn check(raw_lengths: &[usize], step: usize, pieces_max: usize) {
        let raw_input_contents = raw_lengths.iter().map(|len| vec![7u8; *len].into()).collect();
        let request = ModelInferRequest { model_name: "m".repeat(300), raw_input_contents, ..Default::default() };
        let message = request.encode_to_vec();
        let mut reader = gather(&message, step).into_reader();
        let mut pieces = 0;
        let mut all = Vec::new();
        while reader.has_remaining() {
            pieces += 1;
            all.extend_from_slice(reader.chunk());
            reader.advance(reader.chunk().len());
        }
        assert!(all == message, "the bytes stay what they were");
        assert!(pieces <= pieces_max, "{pieces} pieces");
    }

    #[test]
    fn a_large_tensor_becomes_one_piece_and_no_byte_changes() {
        check(&[AHEAD_BYTES_MIN], 4096, 8);
        check(&[AHEAD_BYTES_MIN], 997, 12);
        check(&[0, AHEAD_BYTES_MIN + 1, 5, AHEAD_BYTES_MIN * 2], 1 << 16, 16);
        check(&[AHEAD_BYTES_MIN - 1], 4096, 100);
        check(&[AHEAD_BYTES_MIN], usize::MAX, 6);
    }

    #[test]
    fn nonsense_keeps_its_bytes() {
        for first in 0..=255u8 {
            let message: Vec<u8> = std::iter::once(first).chain((0..=255).cycle().take(AHEAD_BYTES_MIN)).collect();
            let mut reader = gather(&message, 1000).into_reader();
            assert!(reader.copy_to_bytes(message.len()) == message, "{first}");
        }
        let lie = [vec![0x3a, 0x80, 0x80, 0x20], vec![1; AHEAD_BYTES_MIN]].concat();
        assert!(gather(&lie, 1000).into_reader().copy_to_bytes(lie.len()) == lie);
    }
}
