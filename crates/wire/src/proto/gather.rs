//! How does a large tensor get its place while it is still arriving?
//!
//! A tensor that comes in many pieces must be copied into one block in the end. Doing so piece by piece keeps each piece
//! in the cache, and gives its memory back before the next one comes. So the outermost fields are followed as they arrive,
//! and a large one, a tensor or a file, gets its aligned block as soon as its length is known. To the reader of the message
//! that block is one piece among others, which it takes without a copy.
//!
//! What is small stays in its pieces. Where many of them come they are joined: pieces lie in the allocator's memory, which does
//! not come back to the system as long as anything beside them is in use, and blocks do.

use bytes::{Buf, Bytes};
use nerite_memory::{MemoryReservation, NoMemory, Reason, Slot};
use nerite_request::Status;

use super::Chain;

/// Smaller tensors are left in their pieces: they are copied while they are in the cache anyway.
const AHEAD_BYTES_MIN: usize = 256 << 10;
/// Larger tensors get so much at first and more as the bytes really come: a client's word alone reserves no more memory.
const AHEAD_BYTES_MAX: usize = 2 << 20;
/// Pieces that follow each other are joined when they have as many bytes, or are as many.
const LOOSE_BYTES_MAX: usize = 1 << 20;
const LOOSE_PIECES_MAX: usize = 4096;
/// Of bytes that stay in pieces, whose memory others allocate, so many come between two looks at whether there is room.
const ROOM_BYTES: usize = 16 << 20;
const RAW_INPUT_CONTENTS: u64 = 7;

const _: () = assert!(AHEAD_BYTES_MIN < AHEAD_BYTES_MAX && AHEAD_BYTES_MAX < super::MESSAGE_BYTES_MAX);
const _: () =
    assert!(ROOM_BYTES < nerite_memory::SPARE_BYTES, "what comes between two looks must fit into what was spare");

/// Collects the pieces of one message.
#[derive(Debug, Default)]
pub struct Gather {
    chain: Chain,
    follow: Follow,
    /// Bytes that stayed in pieces since it was last seen that there is room.
    unseen: usize,
    /// The first of the pieces that were not joined, and their bytes.
    loose_from: usize,
    loose: usize,
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
    /// Bytes that belong into this block, which grows.
    Fill(Fill),
    /// Nothing: the message is small, or not one that can be followed.
    #[default]
    Nothing,
}

/// A tensor on its way into its block.
#[derive(Debug)]
struct Fill {
    slot: Slot,
    at: usize,
    len: usize,
    /// Whether that is a tensor, and not some other field.
    raw: bool,
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
    /// Expects a message of `len` bytes; of what is no message, 0, and only its pieces are kept.
    pub fn new(len: usize) -> Gather {
        let follow = if len < AHEAD_BYTES_MIN { Follow::Nothing } else { Follow::Tag(Varint::default()) };
        Gather { follow, ..Gather::default() }
    }

    /// Adds the next piece. Refused when the system has no memory for the message.
    pub fn push(&mut self, mut piece: Bytes) -> Result<(), Status> {
        let refuse = |refused| Status::no_memory("a message that is coming in", refused);
        self.see_room(piece.len()).map_err(refuse)?;
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
            // Many small fields in one piece stay one piece.
            let loose = self.follow_loose(&piece).map_err(refuse)?;
            self.keep(piece.split_to(loose)).map_err(refuse)?;
        }
        Ok(())
    }

    /// Puts a piece into the chain that is in no block.
    fn keep(&mut self, piece: Bytes) -> Result<(), NoMemory> {
        self.loose += piece.len();
        self.chain.push(piece);
        if self.loose >= LOOSE_BYTES_MAX || self.chain.count() - self.loose_from >= LOOSE_PIECES_MAX {
            self.chain.join(self.loose_from)?;
            self.kept();
        }
        Ok(())
    }

    /// What is in the chain by now stays as it is.
    fn kept(&mut self) {
        (self.loose_from, self.loose) = (self.chain.count(), 0);
    }

    /// Looks from time to time whether there is room for what is not put into a block.
    fn see_room(&mut self, len: usize) -> Result<(), NoMemory> {
        if matches!(self.follow, Follow::Fill(_)) {
            return Ok(());
        }
        self.unseen += len;
        if self.unseen >= ROOM_BYTES {
            MemoryReservation::take(ROOM_BYTES)?;
            self.unseen = 0;
        }
        Ok(())
    }

    /// The pieces of the whole message.
    pub fn finish(mut self) -> Chain {
        // A message that ends inside a tensor lied about a length; the reader says so, given what there is.
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

    /// Follows the fields in `piece` up to its end, or to the first bytes that belong into a block. How many bytes come before those.
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
    /// What follows the next byte of a tag, a length or a number, after which `ahead` bytes are at hand in the same piece.
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

    /// Takes what belongs to the tensor from the front of `piece`.
    fn take(&mut self, piece: &mut Bytes) -> Result<(), NoMemory> {
        let step = piece.len().min(self.len - self.at);
        let end = self.at + step;
        if end > self.slot.len() {
            let room = end.max(self.slot.len().saturating_mul(2).min(self.len));
            self.slot.try_grow(room, self.at, Reason::InlineRequest)?;
        }
        self.slot.write(self.at, &piece[..step], Reason::InlineRequest).expect("there is room, or it was just made");
        self.at = end;
        piece.advance(step);
        Ok(())
    }
}

fn after_tag(tag: u64) -> Follow {
    match tag & 7 {
        // There is no field of this number, so this is no message: zeros, for example.
        _ if tag >> 3 == 0 => Follow::Nothing,
        0 => Follow::Number,
        1 => Follow::Pass(8),
        2 => Follow::Length { raw: tag >> 3 == RAW_INPUT_CONTENTS, so_far: Varint::default() },
        5 => Follow::Pass(4),
        _ => Follow::Nothing,
    }
}

/// `ahead` bytes of the field are at hand in the same piece.
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

    /// Gathers a message that is said to have `len` bytes.
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
        // Other tests copy some MiB beside this one.
        assert!((LEN..LEN * 3 / 2).contains(&(copied as usize)), "{copied}");
    }

    #[test]
    fn many_small_parts_are_joined_and_no_byte_changes() {
        // Each MiB is one, and the last is not full.
        check([100_000; 100], 1 << 14, 9 + 80);
        check(vec![1000; 3000], 997, 2 + LOOSE_PIECES_MAX);
        check(vec![1; 200_000], 1 << 14, 100 + LOOSE_PIECES_MAX);
        let message = vec![7u8; 10 << 20];
        let chain = gather_as(0, &message, 5000);
        assert!(chain.count() < 11 + 210, "{} pieces", chain.count());
        assert!(chain.into_reader().copy_to_bytes(message.len()) == message[..]);
    }

    #[test]
    fn a_large_part_that_is_no_tensor_becomes_one_piece_too() {
        let message = ModelInferRequest { model_name: "m".repeat(3 << 20), ..Default::default() }.encode_to_vec();
        let chain = gather(&message, 1 << 14);
        assert_eq!(chain.count(), 2);
        assert!(chain.into_reader().copy_to_bytes(message.len()) == message);
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
