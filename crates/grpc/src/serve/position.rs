//! How far has a client's stream of HTTP/2 frames arrived?

use super::connection_calls::Frames;

/// Bytes before the first frame: `PRI * HTTP/2.0 …`.
const PREFACE_BYTES: usize = 24;
const HEADER_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;

/// Counts of frames and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Number of DATA frames that began.
    pub(super) data_frames: usize,
    pub(super) data_bytes: usize,
    /// Bytes of header blocks.
    pub(super) header_bytes: usize,
}

/// The position of the last byte in the stream of frames.
#[derive(Debug)]
pub(super) struct Position {
    /// Bytes of the preface, or of the current frame's payload, that have not arrived.
    left: usize,
    /// The type of the current frame.
    kind: u8,
    header: [u8; HEADER_BYTES],
    header_len: usize,
    /// Whether a header block continues in the next frame.
    in_block: bool,
    /// Whether the header of the first frame has arrived.
    begun: bool,
}

impl Position {
    pub(super) fn new() -> Position {
        let header = [0; HEADER_BYTES];
        Position { left: PREFACE_BYTES, kind: u8::MAX, header, header_len: 0, in_block: false, begun: false }
    }

    pub(super) fn frames(&self) -> Frames {
        match self {
            Position { begun: false, .. } => Frames::NotBegun,
            Position { left: 0, header_len: 0, in_block: false, .. } => Frames::Complete,
            _ => Frames::Incomplete,
        }
    }

    /// Advances by these bytes, and counts what they contain.
    pub(super) fn pass(&mut self, mut bytes: &[u8]) -> Found {
        let mut found = Found::default();
        while !bytes.is_empty() {
            let step = self.left.min(bytes.len());
            match self.kind {
                DATA => found.data_bytes += step,
                HEADERS | CONTINUATION => found.header_bytes += step,
                _ => {}
            }
            self.left -= step;
            bytes = &bytes[step..];
            if self.left > 0 {
                return found;
            }
            let step = (HEADER_BYTES - self.header_len).min(bytes.len());
            self.header[self.header_len..self.header_len + step].copy_from_slice(&bytes[..step]);
            self.header_len += step;
            bytes = &bytes[step..];
            if self.header_len == HEADER_BYTES {
                self.begin_payload();
                found.data_frames += usize::from(self.kind == DATA);
            }
        }
        found
    }

    fn begin_payload(&mut self) {
        let [a, b, c, kind, flags, ..] = self.header;
        self.left = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        self.kind = kind;
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

    /// Passes the preface and `bytes`, divided at every position.
    #[track_caller]
    fn check(bytes: &[u8], expect: Frames) {
        let all = [&[b'P'; PREFACE_BYTES], bytes].concat();
        for step in 1..=all.len() {
            let mut position = Position::new();
            for part in all.chunks(step) {
                position.pass(part);
            }
            assert_eq!(position.frames(), expect, "in steps of {step}");
        }
    }

    #[test]
    fn incomplete_frames_and_header_blocks_are_detected() {
        let settings = frame(4, 0, 6);
        check(b"", Frames::NotBegun);
        check(&settings, Frames::Complete);
        check(&settings[..12], Frames::Incomplete);
        check(&[&settings[..], &settings[..3]].concat(), Frames::Incomplete);
        check(&[settings.clone(), frame(6, 0, 8), frame(HEADERS, END_HEADERS, 9)].concat(), Frames::Complete);
        let begun = [settings.clone(), frame(HEADERS, 0, 9)].concat();
        check(&begun, Frames::Incomplete);
        check(&[begun.clone(), frame(CONTINUATION, 0, 1)].concat(), Frames::Incomplete);
        check(&[begun, frame(CONTINUATION, END_HEADERS, 1)].concat(), Frames::Complete);
        check(&[settings, frame(0, 0, 0)].concat(), Frames::Complete);
    }

    fn long_frame(kind: u8, len: usize) -> Vec<u8> {
        let [_, high, middle, low] = (len as u32).to_be_bytes();
        let mut bytes = vec![high, middle, low, kind, 0, 0, 0, 0, 1];
        bytes.resize(HEADER_BYTES + len, 7);
        bytes
    }

    /// Reads a connection with these frames in pieces of every length.
    #[track_caller]
    fn check_found(frames: &[(u8, usize)], expect: Found) {
        let mut bytes = vec![b'P'; PREFACE_BYTES];
        for &(kind, len) in frames {
            bytes.extend(long_frame(kind, len));
        }
        for step in 1..=bytes.len() {
            let mut reader = Position::new();
            let sum = bytes.chunks(step).map(|piece| reader.pass(piece)).fold(Found::default(), |sum, found| Found {
                data_frames: sum.data_frames + found.data_frames,
                data_bytes: sum.data_bytes + found.data_bytes,
                header_bytes: sum.header_bytes + found.header_bytes,
            });
            assert_eq!(sum, expect, "in pieces of {step}");
        }
    }

    #[test]
    fn frames_are_counted_in_pieces_of_any_length() {
        check_found(&[], Found::default());
        check_found(
            &[(4, 6), (HEADERS, 30), (DATA, 100), (DATA, 0), (8, 4), (CONTINUATION, 5), (DATA, 300)],
            Found { data_frames: 3, data_bytes: 400, header_bytes: 35 },
        );
    }
}
