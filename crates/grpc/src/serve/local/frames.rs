//! Where in a stream of HTTP/2 frames is the host?

/// Length of the HTTP/2 preface, with which every connection begins.
const PREFACE_BYTES: usize = 24;
const HEADER_BYTES: usize = 9;
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Longer header blocks are not changed. Those of normal clients are far shorter.
const BLOCK_BYTES_MAX: usize = 64 << 10;
/// The index of `:authority` in the static table.
const AUTHORITY_INDEX: usize = 1;
const AUTHORITY: &[u8] = b":authority";

/// Parses the frames of one connection.
pub(super) struct Frames {
    /// Bytes of the current frame, or of the preface, that are skipped.
    skip: usize,
    gave_up: bool,
}

impl Frames {
    pub(super) fn new() -> Frames {
        Frames { skip: PREFACE_BYTES, gave_up: false }
    }

    /// From now on, [`Frames::patch`] changes nothing.
    pub(super) fn give_up(&mut self) {
        self.gave_up = true;
    }

    /// Overwrites invalid hosts in the complete header blocks in `bytes`, which continue the stream. Returns how many bytes may be passed on. The
    /// caller must pass the others again, before the bytes that follow them.
    pub(super) fn patch(&mut self, bytes: &mut [u8]) -> usize {
        if self.gave_up {
            return bytes.len();
        }
        let mut at = 0;
        loop {
            let skipped = self.skip.min(bytes.len() - at);
            (at, self.skip) = (at + skipped, self.skip - skipped);
            let rest = &mut bytes[at..];
            let [a, b, c, kind, flags, _, _, _, _, ..] = *rest else { return at };
            let len = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
            if kind != HEADERS || flags & END_HEADERS == 0 || len > BLOCK_BYTES_MAX {
                self.skip = HEADER_BYTES + len;
                continue;
            }
            let Some(payload) = rest.get_mut(HEADER_BYTES..HEADER_BYTES + len) else { return at };
            if let Some(block) = block_of(payload, flags) {
                // The library refuses a block that cannot be parsed.
                let _ = patch_block(block);
            }
            at += HEADER_BYTES + len;
        }
    }
}

/// The header block in a HEADERS frame, without padding and priority.
fn block_of(payload: &mut [u8], flags: u8) -> Option<&mut [u8]> {
    let mut begin = 0;
    let mut end = payload.len();
    if flags & PADDED != 0 {
        end = end.checked_sub(usize::from(*payload.first()?))?;
        begin += 1;
    }
    if flags & PRIORITY != 0 {
        begin += 5;
    }
    payload.get_mut(begin..end)
}

/// Parses the fields of a block as in RFC 7541 § 6, and patches the value of the authority.
fn patch_block(block: &mut [u8]) -> Option<()> {
    let mut at = 0;
    while at < block.len() {
        let first = *block.get(at)?;
        let prefix_bits = match first {
            0x80.. => 7,
            0x40..=0x7f => 6,
            0x20..=0x3f => 5,
            _ => 4,
        };
        let index = integer(block, &mut at, prefix_bits)?;
        if matches!(first, 0x80.. | 0x20..=0x3f) {
            continue;
        }
        let authority = if index == 0 {
            let (_, name) = string(block, &mut at)?;
            block.get(name)? == AUTHORITY
        } else {
            index == AUTHORITY_INDEX
        };
        let length_at = at;
        let (huffman, value) = string(block, &mut at)?;
        if authority && (huffman || !is_host(block.get(value.clone())?)) {
            block[length_at] &= 0x7f;
            block[value].fill(b'u');
        }
    }
    Some(())
}

/// Reads an integer with a prefix of `bits` bits.
fn integer(block: &[u8], at: &mut usize, bits: u32) -> Option<usize> {
    let mask = (1usize << bits) - 1;
    let mut value = usize::from(*block.get(*at)?) & mask;
    *at += 1;
    if value < mask {
        return Some(value);
    }
    for shift in [0, 7, 14, 21] {
        let byte = *block.get(*at)?;
        *at += 1;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Reads a string: whether it is Huffman-coded, and the range of its bytes.
fn string(block: &[u8], at: &mut usize) -> Option<(bool, std::ops::Range<usize>)> {
    let huffman = block.get(*at)? & 0x80 != 0;
    let len = integer(block, at, 7)?;
    let value = *at..at.checked_add(len)?;
    *at = value.end;
    (value.end <= block.len()).then_some((huffman, value))
}

/// Whether the library accepts it as a host.
fn is_host(value: &[u8]) -> bool {
    value.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b':' | b'[' | b']' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let len = (payload.len() as u32).to_be_bytes();
        let mut frame = vec![len[1], len[2], len[3], kind, flags, 0, 0, 0, 1];
        frame.extend_from_slice(payload);
        frame
    }

    fn field(value: &[u8]) -> Vec<u8> {
        let mut field = vec![0x83, 0x41, value.len() as u8];
        field.extend_from_slice(value);
        field.extend_from_slice(&[0x86]);
        field
    }

    /// Patches `stream` in pieces of every length, and expects the same result each time.
    #[track_caller]
    fn check(stream: &[u8], expected: &[u8]) {
        for cut in 1..=stream.len() {
            let (mut frames, mut out, mut held) = (Frames::new(), Vec::new(), Vec::new());
            for piece in stream.chunks(cut) {
                held.extend_from_slice(piece);
                let whole = frames.patch(&mut held);
                out.extend(held.drain(..whole));
            }
            out.extend(held);
            assert_eq!(out, expected, "cut every {cut} bytes");
        }
    }

    fn stream(frames: &[Vec<u8>]) -> Vec<u8> {
        let mut stream = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        stream.extend(frames.concat());
        stream
    }

    #[test]
    fn a_path_becomes_a_host_of_the_same_length_and_a_host_is_kept() {
        let settings = frame(4, 0, &[0; 6]);
        let data = frame(0, 0, &field(b"%2Fa"));
        let with = |value: &[u8]| stream(&[settings.clone(), frame(1, 4, &field(value)), data.clone()]);
        check(&with(b"%2Ftmp%2Fg.sock"), &with(b"uuuuuuuuuuuuuuu"));
        check(&with(b"localhost:8001"), &with(b"localhost:8001"));
    }

    #[test]
    fn padding_and_priority_are_skipped() {
        let padded = |value: &[u8]| {
            let mut payload = vec![2, 0, 0, 0, 0, 16];
            payload.extend(field(value));
            payload.extend([0, 0]);
            stream(&[frame(1, 0x4 | 0x8 | 0x20, &payload)])
        };
        check(&padded(b"/g.sock"), &padded(b"uuuuuuu"));
    }

    #[test]
    fn a_coded_value_is_replaced_by_a_plain_one() {
        let coded = stream(&[frame(1, 4, &[0x41, 0x83, 0x1f, 0x2e, 0x3d])]);
        check(&coded, &stream(&[frame(1, 4, &[0x41, 0x03, b'u', b'u', b'u'])]));
    }

    #[test]
    fn invalid_frames_are_not_changed() {
        for payload in [&[0x41][..], &[0x41, 0x7f], &[0x41, 0xff, 0xff, 0xff, 0xff, 0xff], &[0xff, 0xff, 0xff]] {
            let nonsense = stream(&[frame(1, 4, payload)]);
            check(&nonsense, &nonsense);
        }
        check(&stream(&[frame(1, 0xc, &[200, 1])]), &stream(&[frame(1, 0xc, &[200, 1])]));
    }
}
