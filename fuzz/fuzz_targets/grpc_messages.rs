//! Can any body of a call make the reader of its messages panic, inflate too much, or read otherwise when it is cut otherwise?
//!
//! Of the first byte the highest bit says that the rest is one message, to be compressed before it is read. The next two say how
//! messages are compressed, the other bits how long the pieces are.
#![no_main]

use std::io::Read;

use bytes::Bytes;
use flate2::Compression;
use flate2::read::{GzEncoder, ZlibEncoder};
use libfuzzer_sys::fuzz_target;
use nerite_compress::Encoding;
use nerite_fuzz::{INPUT_BYTES_MAX, run};
use nerite_grpc::fuzzing::read_messages;

fuzz_target!(|input: &[u8]| {
    let Some((&choice, rest)) = input.split_first() else { return };
    let encoding = match choice >> 5 & 3 {
        0 => None,
        1 => Some(Encoding::Gzip),
        _ => Some(Encoding::Deflate),
    };
    let is_message = choice & 0x80 != 0;
    let body = if is_message { framed(rest, encoding) } else { rest.to_vec() };
    let read = |step: usize| {
        let pieces = body.chunks(step.max(1)).map(Bytes::copy_from_slice);
        run(read_messages(pieces, encoding, INPUT_BYTES_MAX)).ok()
    };
    let whole = read(body.len());
    assert_eq!(whole, read(usize::from(choice & 31) + 1));
    if is_message {
        assert_eq!(whole, Some(vec![Bytes::copy_from_slice(rest)]));
    }
    let longest = whole.iter().flatten().map(Bytes::len).max().unwrap_or_default();
    assert!(longest as u64 <= INPUT_BYTES_MAX.max(body.len() as u64), "{longest} bytes");
});

fn framed(message: &[u8], encoding: Option<Encoding>) -> Vec<u8> {
    let mut out = vec![u8::from(encoding.is_some()), 0, 0, 0, 0];
    let level = Compression::fast();
    let written = match encoding {
        None => (&message[..]).take(u64::MAX).read_to_end(&mut out),
        Some(Encoding::Gzip) => GzEncoder::new(message, level).read_to_end(&mut out),
        Some(Encoding::Deflate) => ZlibEncoder::new(message, level).read_to_end(&mut out),
    };
    let len = written.expect("a vector takes everything") as u32;
    out[1..5].copy_from_slice(&len.to_be_bytes());
    out
}
