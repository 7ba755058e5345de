//! Has the client sent half a frame?

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::link::{Frames, Link};

/// Bytes of the text that every connection begins with.
const PREFACE_BYTES: usize = 24;
const HEADER_BYTES: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;

/// A stream of HTTP/2 that notes after each read whether the client's last frame is whole.
pub(super) struct Whole<S> {
    stream: S,
    position: Position,
    link: Arc<Link>,
}

impl<S> Whole<S> {
    /// The same stream, noted in `link`.
    pub(super) fn new(stream: S, link: Arc<Link>) -> Whole<S> {
        Whole { stream, position: Position::new(), link }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Whole<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let outcome = Pin::new(&mut this.stream).poll_read(cx, buf);
        let read = &buf.filled()[before..];
        if !read.is_empty() {
            this.position.pass(read);
            this.link.set_frames(this.position.frames());
        }
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Whole<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

/// Where in the stream of frames the last byte stands.
#[derive(Debug)]
struct Position {
    /// Bytes of the preface, or of the frame's payload, that are still to come.
    left: usize,
    header: [u8; HEADER_BYTES],
    header_len: usize,
    /// Whether a header block goes on in the next frame.
    in_block: bool,
    /// Whether a frame has been whole.
    begun: bool,
}

impl Position {
    fn new() -> Position {
        Position { left: PREFACE_BYTES, header: [0; HEADER_BYTES], header_len: 0, in_block: false, begun: false }
    }

    fn frames(&self) -> Frames {
        match self {
            Position { begun: false, .. } => Frames::NotBegun,
            Position { left: 0, header_len: 0, in_block: false, .. } => Frames::Whole,
            _ => Frames::Half,
        }
    }

    /// Goes on by these bytes.
    fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let step = self.left.min(bytes.len());
            self.left -= step;
            bytes = &bytes[step..];
            if self.left > 0 {
                return;
            }
            let step = (HEADER_BYTES - self.header_len).min(bytes.len());
            self.header[self.header_len..self.header_len + step].copy_from_slice(&bytes[..step]);
            self.header_len += step;
            bytes = &bytes[step..];
            if self.header_len == HEADER_BYTES {
                self.begin_payload();
            }
        }
    }

    fn begin_payload(&mut self) {
        let [a, b, c, kind, flags, ..] = self.header;
        self.left = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        self.header_len = 0;
        if matches!(kind, HEADERS | CONTINUATION) {
            self.in_block = flags & END_HEADERS == 0;
        }
        self.begun = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, len: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, len, kind, flags, 0, 0, 0, 1];
        frame.extend(vec![0xab; usize::from(len)]);
        frame
    }

    /// Passes the preface and `bytes`, cut at every place.
    #[track_caller]
    fn check(bytes: &[u8], expect: Frames) {
        let all = [&[b'P'; PREFACE_BYTES], bytes].concat();
        for step in 1..=all.len() {
            let mut position = Position::new();
            all.chunks(step).for_each(|part| position.pass(part));
            assert_eq!(position.frames(), expect, "in steps of {step}");
        }
    }

    #[test]
    fn half_frames_and_half_header_blocks_are_seen() {
        let settings = frame(4, 0, 6);
        check(b"", Frames::NotBegun);
        check(&settings, Frames::Whole);
        check(&settings[..12], Frames::Half);
        check(&[&settings[..], &settings[..3]].concat(), Frames::Half);
        check(&[settings.clone(), frame(6, 0, 8), frame(HEADERS, END_HEADERS, 9)].concat(), Frames::Whole);
        let begun = [settings.clone(), frame(HEADERS, 0, 9)].concat();
        check(&begun, Frames::Half);
        check(&[begun.clone(), frame(CONTINUATION, 0, 1)].concat(), Frames::Half);
        check(&[begun, frame(CONTINUATION, END_HEADERS, 1)].concat(), Frames::Whole);
        check(&[settings, frame(0, 0, 0)].concat(), Frames::Whole);
    }
}
