//! Which HTTP/2 frames does a load generator need, and what do they look like?
//!
//! RFC 9113 has the frames, RFC 7541 the headers inside them.

/// Bytes before each frame's body: length 3, kind 1, flags 1, stream 4.
pub(super) const HEAD_BYTES: usize = 9;
pub(super) const END_STREAM: u8 = 1;
pub(super) const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const WINDOW_BYTES_MAX: u32 = i32::MAX as u32;
/// The size of frames we take: large ones cost both sides less.
const FRAME_BYTES_MAX: u32 = 1 << 20;
const TABLE_BYTES_DEFAULT: u32 = 4096;

const CONTENT_TYPE: &str = "application/grpc";

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind(u8);

impl Kind {
    pub(super) const DATA: Kind = Kind(0);
    pub(super) const HEADERS: Kind = Kind(1);
    pub(super) const RST_STREAM: Kind = Kind(3);
    pub(super) const SETTINGS: Kind = Kind(4);
    pub(super) const PING: Kind = Kind(6);
    pub(super) const GOAWAY: Kind = Kind(7);
    pub(super) const WINDOW_UPDATE: Kind = Kind(8);
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) len: usize,
    pub(super) kind: Kind,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl Frame {
    /// Reads a head; the caller has nine bytes.
    pub(super) fn read(head: &[u8]) -> Frame {
        let byte = |at: usize| head.get(at).copied().unwrap_or_default();
        Frame {
            len: usize::from(byte(0)) << 16 | usize::from(byte(1)) << 8 | usize::from(byte(2)),
            kind: Kind(byte(3)),
            flags: byte(4),
            stream: number(&head[5..]),
        }
    }
}

/// What the server asks of us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// Whether the server has sent its settings.
    pub(super) known: bool,
    /// The bytes that may be in flight on a new stream.
    pub(super) window_bytes: u32,
    pub(super) frame_bytes_max: u32,
    /// Whether it remembers the headers we sent, so that later requests may refer to them.
    pub(super) indexes: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { known: false, window_bytes: 65_535, frame_bytes_max: 16_384, indexes: true }
    }
}

impl Settings {
    pub(super) fn read(&mut self, body: &[u8]) {
        self.known = true;
        for entry in body.chunks_exact(6) {
            let value = number(&entry[2..]);
            match u16::from_be_bytes([entry[0], entry[1]]) {
                1 => self.indexes = value >= TABLE_BYTES_DEFAULT,
                4 => self.window_bytes = value,
                5 => self.frame_bytes_max = value,
                _ => {}
            }
        }
    }
}

/// A big-endian number of 31 bits at the front; the reserved bit is dropped.
pub(super) fn number(body: &[u8]) -> u32 {
    body.first_chunk::<4>().map_or(0, |four| u32::from_be_bytes(*four) & WINDOW_BYTES_MAX)
}

pub(super) fn head(kind: Kind, flags: u8, stream: u32, len: usize) -> [u8; HEAD_BYTES] {
    let mut out = [0; HEAD_BYTES];
    out[..3].copy_from_slice(&(len as u32).to_be_bytes()[1..]);
    (out[3], out[4]) = (kind.0, flags);
    out[5..].copy_from_slice(&stream.to_be_bytes());
    out
}

/// The first bytes of a client: the preface, its settings, and the largest window for the connection.
pub(super) fn greeting() -> Vec<u8> {
    let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let settings: [(u16, u32); 3] = [(2, 0), (4, WINDOW_BYTES_MAX), (5, FRAME_BYTES_MAX)];
    out.extend(head(Kind::SETTINGS, 0, 0, settings.len() * 6));
    for (name, value) in settings {
        out.extend(name.to_be_bytes());
        out.extend(value.to_be_bytes());
    }
    out.extend(head(Kind::WINDOW_UPDATE, 0, 0, 4));
    out.extend((WINDOW_BYTES_MAX - 65_535).to_be_bytes());
    out
}

/// The headers of the requests of a connection, which are the same for each.
#[derive(Clone, Debug)]
pub(crate) struct Headers {
    scheme: &'static str,
    /// Entries that name a header of the fixed table by its number, with their values.
    known: Vec<(usize, String)>,
    /// Further ones.
    other: Vec<(String, String)>,
}

impl Headers {
    /// Of calls of the method at `path`, such as `/inference.GRPCInferenceService/ModelInfer`.
    pub(crate) fn new(path: &str, authority: &str, is_tls: bool, other: &[(String, String)]) -> Headers {
        // Names from the fixed table: 4 is `:path`, 1 `:authority`, 31 `content-type`.
        let known = [(4, path), (1, authority), (31, CONTENT_TYPE)].map(|(name, value)| (name, value.to_owned()));
        let te = ("te".to_owned(), "trailers".to_owned());
        let other = std::iter::once(te).chain(other.iter().map(|(name, value)| (name.to_lowercase(), value.clone())));
        Headers { scheme: if is_tls { "https" } else { "http" }, known: known.into(), other: other.collect() }
    }

    /// The frame of a request. The first request contains all headers and makes the server remember them (`spells`, `indexes`). Later requests refer to
    /// them, as those of real clients do.
    pub(super) fn frame(&self, stream: u32, spells: bool, indexes: bool) -> Vec<u8> {
        // From the fixed table: `:method: POST`, and `:scheme: http` or `:scheme: https`.
        let mut block = vec![0x83, if self.scheme == "https" { 0x87 } else { 0x86 }];
        if spells {
            let (form, bits) = if indexes { (0x40, 6) } else { (0x00, 4) };
            for (name, value) in &self.known {
                integer(&mut block, form, bits, *name);
                text(&mut block, value);
            }
            for (name, value) in &self.other {
                block.push(form);
                text(&mut block, name);
                text(&mut block, value);
            }
        } else {
            // The dynamic table counts from 62, the last one entered first.
            let count = self.known.len() + self.other.len();
            (0..count).rev().for_each(|at| integer(&mut block, 0x80, 7, 62 + at));
        }
        let mut out = head(Kind::HEADERS, END_HEADERS, stream, block.len()).to_vec();
        out.extend(block);
        out
    }
}

/// A number whose first `bits` bits share a byte with `form`.
fn integer(out: &mut Vec<u8>, form: u8, bits: u32, mut value: usize) {
    let most = (1usize << bits) - 1;
    if value < most {
        return out.push(form | value as u8);
    }
    out.push(form | most as u8);
    value -= most;
    while value >= 128 {
        out.push((value % 128) as u8 | 0x80);
        value /= 128;
    }
    out.push(value as u8);
}

fn text(out: &mut Vec<u8>, text: &str) {
    integer(out, 0, 7, text.len());
    out.extend(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written() {
        let written = head(Kind::DATA, END_STREAM, 5, 70_000);
        assert_eq!(Frame::read(&written), Frame { len: 70_000, kind: Kind::DATA, flags: 1, stream: 5 });
    }

    #[track_caller]
    fn check(bits: u32, value: usize, bytes: &[u8]) {
        let mut out = Vec::new();
        integer(&mut out, 0, bits, value);
        assert_eq!(out, bytes, "{value} in {bits} bits");
    }

    #[test]
    fn numbers_are_those_of_the_examples_in_rfc_7541() {
        check(5, 10, &[0b01010]);
        check(5, 1337, &[0b11111, 0b1001_1010, 0b0000_1010]);
        check(4, 31, &[0b1111, 16]);
    }

    #[test]
    fn a_later_request_refers_to_the_first() {
        let headers = Headers::new("/inference.GRPCInferenceService/ModelInfer", "a:1", false, &[]);
        assert_eq!(headers.frame(3, false, true)[HEAD_BYTES..], [0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe]);
        assert!(headers.frame(1, true, true).len() > 60);
    }

    #[test]
    fn settings_of_the_server_are_kept() {
        let mut settings = Settings::default();
        settings.read(&[0, 4, 0, 64, 0, 0, 0, 5, 0, 0, 255, 255, 0, 1, 0, 0, 0, 0]);
        let expected = Settings { known: true, window_bytes: 4 << 20, frame_bytes_max: 65_535, indexes: false };
        assert_eq!(settings, expected);
    }
}
