//! How is a message held that arrived in several pieces?

use std::borrow::Cow;

use bytes::{Buf, Bytes, BytesMut};
use nerite_memory::{Buffer, NoMemory, Reason, Slot};
use smallvec::{SmallVec, smallvec};

use super::read::{Malformed, Read};
use crate::budget::Budget;

/// A message as the socket delivered it: consecutive pieces, none of them copied.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    pieces: SmallVec<[Bytes; 2]>,
    len: usize,
}

impl Chain {
    /// An empty chain.
    pub fn new() -> Chain {
        Chain::default()
    }

    /// Appends a piece.
    pub fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.len += piece.len();
            self.pieces.push(piece);
        }
    }

    /// Bytes in all pieces.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of pieces.
    pub fn count(&self) -> usize {
        self.pieces.len()
    }

    /// Copies all pieces from `first` on into one.
    pub(super) fn join(&mut self, first: usize) -> Result<(), NoMemory> {
        let run: Run = self.pieces.drain(first..).collect();
        let joined = place(run, 1)?.try_into_bytes()?;
        self.pieces.push(joined);
        Ok(())
    }

    /// The chain as a `Buf`, for a reader of whole messages.
    pub fn into_reader(self) -> ChainReader {
        ChainReader { left: self.len, pieces: self.pieces, piece: 0 }
    }

    /// The pieces.
    pub fn into_pieces(self) -> Vec<Bytes> {
        self.pieces.into_vec()
    }

    pub(super) fn cursor(&self) -> Cursor<'_> {
        Cursor { pieces: &self.pieces, at: 0, left: self.len, budget: Budget::new() }
    }
}

impl From<Bytes> for Chain {
    fn from(bytes: Bytes) -> Chain {
        let mut chain = Chain::new();
        chain.push(bytes);
        chain
    }
}

/// A [`Chain`] as a `bytes::Buf`, for `prost`.
#[derive(Debug)]
pub struct ChainReader {
    pieces: SmallVec<[Bytes; 2]>,
    piece: usize,
    left: usize,
}

impl Buf for ChainReader {
    fn remaining(&self) -> usize {
        self.left
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.get(self.piece).map_or(&[], |piece| piece)
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.left, "{count} of {} bytes", self.left);
        self.left -= count;
        while count > 0 {
            let piece = &mut self.pieces[self.piece];
            let step = count.min(piece.len());
            piece.advance(step);
            count -= step;
            self.piece += usize::from(piece.is_empty());
        }
    }

    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        if len == 0 {
            return Bytes::new();
        }
        if self.chunk().len() >= len {
            let bytes = self.pieces[self.piece].slice(..len);
            self.advance(len);
            return bytes;
        }
        let mut out = BytesMut::with_capacity(len);
        bytes::BufMut::put(&mut out, self.take(len));
        out.freeze()
    }
}

/// A position in a [`Chain`].
pub(super) struct Cursor<'a> {
    pieces: &'a [Bytes],
    at: usize,
    left: usize,
    /// Budget for bytes that are copied out of the pieces.
    budget: Budget,
}

/// The bytes of one field, in one or more pieces.
pub(super) type Run = SmallVec<[Bytes; 1]>;

impl<'a> Cursor<'a> {
    /// The rest of the current piece, at most `max` bytes. Not empty while `left > 0`.
    fn step(&mut self, max: usize) -> (&'a Bytes, usize, usize) {
        let piece = &self.pieces[0];
        let (from, len) = (self.at, max.min(piece.len() - self.at));
        self.at += len;
        self.left -= len;
        if self.at == piece.len() {
            self.pieces = &self.pieces[1..];
            self.at = 0;
        }
        (piece, from, from + len)
    }

    fn claim(&self, len: usize) -> Result<(), Malformed> {
        if len > self.left { Err(Malformed::Truncated { left: self.left, need: len }) } else { Ok(()) }
    }

    /// The next `len` bytes as one slice. Copied only if they are in more than one piece.
    pub(super) fn contiguous(&mut self, len: usize) -> Result<Cow<'a, [u8]>, Malformed> {
        self.claim(len)?;
        if len == 0 {
            return Ok(Cow::Borrowed(&[]));
        }
        let (piece, from, to) = self.step(len);
        if to - from == len {
            return Ok(Cow::Borrowed(&piece[from..to]));
        }
        self.budget.need(len)?;
        let mut all = Vec::with_capacity(len);
        all.extend_from_slice(&piece[from..to]);
        while all.len() < len {
            let (piece, from, to) = self.step(len - all.len());
            all.extend_from_slice(&piece[from..to]);
        }
        Ok(Cow::Owned(all))
    }

    /// The next `len` bytes, without a copy.
    pub(super) fn run(&mut self, len: usize) -> Result<Run, Malformed> {
        self.claim(len)?;
        let (mut run, mut need) = (smallvec![], len);
        while need > 0 {
            let (piece, from, to) = self.step(need);
            need -= to - from;
            run.push(piece.slice(from..to));
        }
        Ok(run)
    }
}

impl Read for Cursor<'_> {
    fn left(&self) -> usize {
        self.left
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        self.claim(1)?;
        let (piece, from, _) = self.step(1);
        Ok(piece[from])
    }

    fn skip(&mut self, len: usize) -> Result<(), Malformed> {
        self.claim(len)?;
        let mut need = len;
        while need > 0 {
            let (_, from, to) = self.step(need);
            need -= to - from;
        }
        Ok(())
    }
}

/// A tensor's bytes as one Buffer. If all bytes are in one piece with the alignment `align`, this is the piece itself. Otherwise it is a copy, which
/// is counted.
pub(super) fn place(mut run: Run, align: usize) -> Result<Buffer, NoMemory> {
    if run.len() > 1 {
        let mut slot = Slot::try_heap(run.iter().map(Bytes::len).sum())?;
        let mut at = 0;
        for piece in &run {
            slot.write(at, piece, Reason::InlineRequest).expect("the slot has the length of all pieces");
            at += piece.len();
        }
        return Ok(slot.filled().into_buffer());
    }
    let Some(piece) = run.pop() else { return Ok(Buffer::empty()) };
    let buffer = Buffer::from(piece);
    if buffer.is_aligned(align) { Ok(buffer) } else { buffer.try_private(Reason::InlineRequest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(pieces: &[&'static [u8]]) -> Chain {
        let mut chain = Chain::new();
        for piece in pieces {
            chain.push(Bytes::from_static(piece));
        }
        chain
    }

    #[track_caller]
    fn check(pieces: &[&'static [u8]], skip: usize, take: usize, expect: Option<&[u8]>) {
        let chain = chain(pieces);
        let mut cursor = chain.cursor();
        let got = cursor.skip(skip).and_then(|()| cursor.contiguous(take)).ok();
        assert_eq!(got.as_deref(), expect);
        let mut cursor = chain.cursor();
        let run = cursor.skip(skip).and_then(|()| cursor.run(take)).ok();
        assert_eq!(run.map(|run| run.concat()).as_deref(), expect);
    }

    #[test]
    fn bytes_are_found_across_pieces_and_never_past_the_end() {
        check(&[b"abc", b"", b"de"], 0, 5, Some(b"abcde"));
        check(&[b"abc", b"de"], 1, 2, Some(b"bc"));
        check(&[b"abc", b"de"], 3, 2, Some(b"de"));
        check(&[b"abc", b"de"], 2, 2, Some(b"cd"));
        check(&[b"abc", b"de"], 5, 0, Some(b""));
        check(&[b"abc", b"de"], 5, 1, None);
        check(&[b"abc", b"de"], 6, 0, None);
        check(&[], 0, usize::MAX, None);
    }

    #[test]
    fn a_reader_sees_the_pieces_as_one() {
        let mut reader = chain(&[b"abc", b"de", b"f"]).into_reader();
        assert_eq!(reader.copy_to_bytes(4), &b"abcd"[..]);
        assert_eq!((reader.remaining(), reader.chunk()), (2, &b"e"[..]));
        reader.advance(2);
        assert!(!reader.has_remaining() && reader.chunk().is_empty());
    }

    #[test]
    fn only_split_or_misaligned_tensors_are_copied() {
        let block = Bytes::from(vec![0u8; 32]);
        let base = block.as_ptr().addr() % 8;
        let even = block.slice((8 - base) % 8..(8 - base) % 8 + 8);
        let place = |run, align| super::place(run, align).expect("a few bytes");
        assert_eq!(place(smallvec![even.clone()], 8).as_ptr(), even.as_ptr());
        let odd = even.slice(1..5);
        let placed = place(smallvec![odd.clone()], 4);
        assert!(placed.is_aligned(4) && placed.as_ptr() != odd.as_ptr());
        assert_eq!(place(smallvec![odd.clone()], 1).as_ptr(), odd.as_ptr());
        let joined = place(smallvec![odd, even], 1);
        assert_eq!((joined.len(), joined.private_bytes()), (12, Some(&[0u8; 12][..])));
    }
}
