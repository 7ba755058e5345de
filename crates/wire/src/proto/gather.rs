//! How does a large tensor get its block of memory while it is still arriving?
//!
//! A tensor that arrives in many pieces must be copied into one block. Copying piece by piece uses each piece while it is in the cache, and frees its
//! memory before the next piece arrives. So the outermost fields are parsed as they arrive. A large field, a tensor or a file, gets an aligned block
//! as soon as its length is known. For the reader of the message the block is one piece of the chain, which needs no further copy.
//!
//! Small fields remain in their pieces. If there are many, the pieces are joined: pieces are in the allocator's memory, which is not returned to the
//! system while a neighbour is in use. Blocks are returned.

use bytes::{Buf, Bytes};
use nerite_memory::{MemoryReservation, NoMemory, Reason, Slot};
use nerite_request::Status;

use super::Chain;

/// Smaller tensors remain in their pieces. The reader copies them while they are still in the cache.
const AHEAD_BYTES_MIN: usize = 256 << 10;
/// Larger tensors get this much at first, and more as bytes arrive. A length alone reserves no more memory.
const AHEAD_BYTES_MAX: usize = 2 << 20;
/// Consecutive pieces are joined when they have this many bytes, or there are this many of them.
const LOOSE_BYTES_MAX: usize = 1 << 20;
const LOOSE_PIECES_MAX: usize = 4096;
/// Bytes that may remain in pieces before available memory is checked again. Other code allocates the pieces.
const UNCHECKED_BYTES_MAX: usize = 16 << 20;
const RAW_INPUT_CONTENTS: u64 = 7;

const _: () = assert!(AHEAD_BYTES_MIN < AHEAD_BYTES_MAX && AHEAD_BYTES_MAX < super::MESSAGE_BYTES_MAX);
const _: () = assert!(
    UNCHECKED_BYTES_MAX < nerite_memory::SPARE_BYTES,
    "bytes that arrive between two checks must fit into the spare memory"
);

/// Collects the pieces of one message.
#[derive(Debug, Default)]
pub struct Gather {
    chain: Chain,
    follow: Follow,
    /// Bytes that remained in pieces since available memory was last checked.
    unchecked: usize,
    /// The first piece that was not joined, and the bytes from there on.
    loose_from: usize,
    loose: usize,
}

/// The kind of the next bytes.
#[derive(Debug, Default)]
enum Follow {
    /// A tag, of which the low bits have arrived.
    Tag(Varint),
    /// The length of a field.
    Length { raw: bool, so_far: Varint },
    /// A number, up to its last byte.
    Number,
    /// This many bytes that remain in their pieces.
    Pass(usize),
    /// Bytes that are copied into this block.
    Fill(Fill),
    /// Not parsed: the message is small, or is not valid.
    #[default]
    Nothing,
}

/// A large field that is being copied into its block.
#[derive(Debug)]
struct Fill {
    slot: Slot,
    at: usize,
    len: usize,
    /// Whether the field is a tensor.
    raw: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Varint {
    value: u64,
    shift: u32,
}

impl Varint {
    /// Takes one byte. Returns the value once it is complete, and `Err` if it is too long.
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
    /// Expects a message of `len` bytes. With 0 nothing is parsed and the pieces are only collected.
    pub fn new(len: usize) -> Gather {
        let follow = if len < AHEAD_BYTES_MIN { Follow::Nothing } else { Follow::Tag(Varint::default()) };
        Gather { follow, ..Gather::default() }
    }

    /// Adds the next piece. Fails if the system has no memory for the message.
    pub fn push(&mut self, mut piece: Bytes) -> Result<(), Status> {
        let refuse = |refused| Status::no_memory("a message that is coming in", refused);
        self.check_memory(piece.len()).map_err(refuse)?;
        while !piece.is_empty() {
            if let Follow::Fill(fill) = &mut self.follow {
                let (what, len) = (if fill.raw { "a tensor" } else { "a part of a message" }, fill.len);
                let refuse = |refused| Status::no_memory(format_args!("{what} of {len} bytes"), refused);
                fill.take(&mut piece).map_err(refuse)?;
                if fill.at == fill.len {
                    self.finish_slot();
                }
                continue;
            }
            // Many small fields in one piece remain one piece.
            let loose = self.follow_loose(&piece).map_err(refuse)?;
            self.keep(piece.split_to(loose)).map_err(refuse)?;
        }
        Ok(())
    }

    /// Appends a piece that is not part of a block to the chain.
    fn keep(&mut self, piece: Bytes) -> Result<(), NoMemory> {
        self.loose += piece.len();
        self.chain.push(piece);
        if self.loose >= LOOSE_BYTES_MAX || self.chain.count() - self.loose_from >= LOOSE_PIECES_MAX {
            self.chain.join(self.loose_from)?;
            self.kept();
        }
        Ok(())
    }

    /// Marks all pieces of the chain as joined.
    fn kept(&mut self) {
        (self.loose_from, self.loose) = (self.chain.count(), 0);
    }

    /// Checks from time to time whether there is memory for bytes that are not copied into a block.
    fn check_memory(&mut self, len: usize) -> Result<(), NoMemory> {
        if matches!(self.follow, Follow::Fill(_)) {
            return Ok(());
        }
        self.unchecked += len;
        if self.unchecked >= UNCHECKED_BYTES_MAX {
            MemoryReservation::take(UNCHECKED_BYTES_MAX)?;
            self.unchecked = 0;
        }
        Ok(())
    }

    /// The pieces of the whole message.
    pub fn finish(mut self) -> Chain {
        // The message ends inside a tensor, so a length was wrong. The reader reports that from the bytes received.
        if matches!(self.follow, Follow::Fill(_)) {
            self.finish_slot();
        }
        self.chain
    }

    fn finish_slot(&mut self) {
        if let Follow::Fill(Fill { mut slot, at, .. }) =
            std::mem::replace(&mut self.follow, Follow::Tag(Varint::default()))
        {
            slot.truncate(at);
            self.chain.push(slot.filled().into_buffer().into_bytes());
            self.kept();
        }
    }

    /// Parses the fields in `piece` up to its end, or to the first byte for a block. Returns the number of bytes before that.
    fn follow_loose(&mut self, piece: &[u8]) -> Result<usize, NoMemory> {
        let mut at = 0;
        while let Some(&byte) = piece.get(at) {
            self.follow = match std::mem::take(&mut self.follow) {
                Follow::Nothing => return Ok(piece.len()),
                fill @ Follow::Fill(_) => {
                    self.follow = fill;
                    return Ok(at);
                }
                Follow::Pass(left) => {
                    let step = left.min(piece.len() - at);
                    at += step;
                    if step < left { Follow::Pass(left - step) } else { Follow::Tag(Varint::default()) }
                }
                head => {
                    at += 1;
                    head.take(byte, piece.len() - at)?
                }
            };
        }
        Ok(at)
    }
}

impl Follow {
    /// The state after the next byte of a tag, a length or a number. `ahead` bytes follow it in the same piece.
    fn take(self, byte: u8, ahead: usize) -> Result<Follow, NoMemory> {
        Ok(match self {
            Follow::Tag(mut tag) => match tag.take(byte) {
                Ok(Some(tag)) => after_tag(tag),
                Ok(None) => Follow::Tag(tag),
                Err(()) => Follow::Nothing,
            },
            Follow::Length { raw, mut so_far } => match so_far.take(byte) {
                Ok(Some(len)) => after_length(raw, len, ahead)?,
                Ok(None) => Follow::Length { raw, so_far },
                Err(()) => Follow::Nothing,
            },
            _ if byte < 0x80 => Follow::Tag(Varint::default()),
            _ => Follow::Number,
        })
    }
}

impl Fill {
    fn new(len: usize, raw: bool) -> Result<Fill, NoMemory> {
        Ok(Fill { slot: Slot::try_announced(len, AHEAD_BYTES_MAX)?, at: 0, len, raw })
    }

    /// Takes the bytes of the field from the front of `piece`.
    fn take(&mut self, piece: &mut Bytes) -> Result<(), NoMemory> {
        let step = piece.len().min(self.len - self.at);
        let end = self.at + step;
        if end > self.slot.len() {
            let capacity = end.max(self.slot.len().saturating_mul(2).min(self.len));
            self.slot.try_grow(capacity, self.at, Reason::InlineRequest)?;
        }
        self.slot
            .write(self.at, &piece[..step], Reason::InlineRequest)
            .expect("the slot has the capacity, or has just grown");
        self.at = end;
        piece.advance(step);
        Ok(())
    }
}

fn after_tag(tag: u64) -> Follow {
    match tag & 7 {
        // Field number 0 does not exist, so this is not a message. It could be zeros.
        _ if tag >> 3 == 0 => Follow::Nothing,
        0 => Follow::Number,
        1 => Follow::Pass(8),
        2 => Follow::Length { raw: tag >> 3 == RAW_INPUT_CONTENTS, so_far: Varint::default() },
        5 => Follow::Pass(4),
        _ => Follow::Nothing,
    }
}

/// The state after a length. `ahead` bytes of the field are in the same piece.
fn after_length(raw: bool, len: u64, ahead: usize) -> Result<Follow, NoMemory> {
    let Ok(len) = usize::try_from(len) else { return Ok(Follow::Nothing) };
    if len == 0 {
        return Ok(Follow::Tag(Varint::default()));
    }
    if len > ahead && (AHEAD_BYTES_MIN..=super::MESSAGE_BYTES_MAX).contains(&len) {
        return Fill::new(len, raw).map(Follow::Fill);
    }
    Ok(Follow::Pass(len))
}

#[cfg(test)]
mod tests {
    use bytes::Buf;
    use prost::Message;

    use super::super::messages::ModelInferRequest;
    use super::*;

    fn gather(message: &[u8], step: usize) -> Chain {
        gather_as(message.len(), message, step)
    }

    /// Gathers a message whose declared length is `len` bytes.
    fn gather_as(len: usize, message: &[u8], step: usize) -> Chain {
        let mut gather = Gather::new(len);
        message.chunks(step).for_each(|piece| gather.push(Bytes::copy_from_slice(piece)).expect("some MiB"));
        gather.finish()
    }

    #[track_caller]
    fn check(raw_lengths: impl AsRef<[usize]>, step: usize, pieces_max: usize) {
        let raw_input_contents = raw_lengths.as_ref().iter().map(|len| vec![7u8; *len].into()).collect();
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
        check([AHEAD_BYTES_MIN], 4096, 8);
        check([AHEAD_BYTES_MIN], 997, 12);
        check([0, AHEAD_BYTES_MIN + 1, 5, AHEAD_BYTES_MIN * 2], 1 << 16, 16);
        check([AHEAD_BYTES_MIN - 1], 4096, 100);
        check([AHEAD_BYTES_MIN], usize::MAX, 6);
    }

    #[test]
    fn a_tensor_larger_than_its_first_block_moves_on_without_another_copy() {
        const LEN: usize = 64 << 20;
        const { assert!(LEN > AHEAD_BYTES_MAX) };
        let before = nerite_memory::copied_bytes(Reason::InlineRequest);
        check([LEN + 5, 3], 4 << 20, 8);
        let copied = nerite_memory::copied_bytes(Reason::InlineRequest) - before;
        // Other tests run at the same time and copy some MiB.
        assert!((LEN..LEN * 3 / 2).contains(&(copied as usize)), "{copied}");
    }

    #[test]
    fn many_small_parts_are_joined_and_no_byte_changes() {
        // Each MiB becomes one piece. The last one is not full.
        check([100_000; 100], 1 << 14, 9 + 80);
        check(vec![1000; 3000], 997, 2 + LOOSE_PIECES_MAX);
        check(vec![1; 200_000], 1 << 14, 100 + LOOSE_PIECES_MAX);
        let message = vec![7u8; 10 << 20];
        let chain = gather_as(0, &message, 5000);
        assert!(chain.count() < 11 + 210, "{} pieces", chain.count());
        assert!(chain.into_reader().copy_to_bytes(message.len()) == message[..]);
    }

    #[test]
    fn a_large_field_that_is_not_a_tensor_becomes_one_piece_too() {
        let message = ModelInferRequest { model_name: "m".repeat(3 << 20), ..Default::default() }.encode_to_vec();
        let chain = gather(&message, 1 << 14);
        assert_eq!(chain.count(), 2);
        assert!(chain.into_reader().copy_to_bytes(message.len()) == message);
    }

    #[test]
    fn invalid_messages_keep_their_bytes() {
        for first in 0..=255u8 {
            let message: Vec<u8> = std::iter::once(first).chain((0..=255).cycle().take(AHEAD_BYTES_MIN)).collect();
            let mut reader = gather(&message, 1000).into_reader();
            assert!(reader.copy_to_bytes(message.len()) == message, "{first}");
        }
        let lie = [vec![0x3a, 0x80, 0x80, 0x20], vec![1; AHEAD_BYTES_MIN]].concat();
        assert!(gather(&lie, 1000).into_reader().copy_to_bytes(lie.len()) == lie);
    }
}
