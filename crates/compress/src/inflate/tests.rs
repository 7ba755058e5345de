//! Are messages inflated in steps, to the original, and within their limits?

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};

use super::*;
use crate::limits::STEP_BYTES_IN;

const MIB: usize = 1 << 20;

/// A sink on the heap, which grows in steps of a few KiB.
#[derive(Default)]
struct Heap {
    bytes: Vec<u8>,
    buffer: Vec<u8>,
    full: Option<Status>,
}

impl Sink for Heap {
    fn buffer(&mut self) -> Result<&mut [u8], Status> {
        self.buffer.resize(5000, 0);
        Ok(&mut self.buffer)
    }

    fn advance(&mut self, written: usize) -> Result<(), Status> {
        self.bytes.extend_from_slice(&self.buffer[..written]);
        self.full.clone().map_or(Ok(()), Err)
    }
}

fn packed(bytes: &[u8], encoding: Encoding) -> Bytes {
    let made = match encoding {
        Encoding::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(bytes).and_then(|()| encoder.finish())
        }
        Encoding::Deflate => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(bytes).and_then(|()| encoder.finish())
        }
    };
    made.expect("a vector takes everything").into()
}

async fn inflated(from: Bytes, encoding: Encoding, bytes_max: usize) -> Result<Vec<u8>, String> {
    let sink = inflate(from, encoding, bytes_max as u64, Heap::default(), &Lane::new()).await;
    sink.map(|sink| sink.bytes).map_err(|fault| fault.to_string())
}

/// Bytes that deflate cannot compress.
fn noise(len: usize) -> Vec<u8> {
    let next = |state: &mut u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        Some((*state >> 56) as u8)
    };
    std::iter::repeat_with(|| ()).scan(1, |state, ()| next(state)).take(len).collect()
}

#[tokio::test]
async fn messages_of_every_size_inflate_to_the_original() {
    for encoding in [Encoding::Gzip, Encoding::Deflate] {
        for message in [vec![], noise(3), noise(7000), noise(20_000), noise(MIB), vec![7; 60_000], vec![7; 5 * MIB]] {
            let back = inflated(packed(&message, encoding), encoding, 8 * MIB).await;
            assert!(back.is_ok_and(|back| back == message), "{} bytes, {encoding:?}", message.len());
        }
    }
}

#[tokio::test]
async fn a_message_may_have_at_most_the_allowed_bytes() {
    for (len, encoding) in [(10_000, Encoding::Gzip), (3 * MIB, Encoding::Gzip), (3 * MIB, Encoding::Deflate)] {
        let message = packed(&vec![7; len], encoding);
        assert_eq!(inflated(message.clone(), encoding, len).await.map(|back| back.len()), Ok(len));
        let text = format!(
            "Decompressed data size exceeds the maximum allowed value of {} bytes. Use --http-max-input-size to increase \
             the limit.",
            len - 1
        );
        assert_eq!(inflated(message, encoding, len - 1).await, Err(text));
    }
}

#[track_caller]
fn check_bound(bytes_in: u64, bytes_max: u64, bytes: u64, by_ratio: bool) {
    let bound = Bound::of(bytes_in, bytes_max);
    assert_eq!((bound.bytes, bound.by_ratio), (bytes, by_ratio), "{bytes_in} {bytes_max}");
}

#[test]
fn messages_above_the_floor_are_limited_by_the_ratio() {
    const GIB: u64 = 1 << 30;
    check_bound(0, GIB, INFLATED_FLOOR_BYTES, true);
    check_bound(1 << 10, GIB, INFLATED_FLOOR_BYTES, true);
    check_bound(1 << 10, 1 << 20, 1 << 20, false);
    check_bound(1 << 20, GIB, 200 << 20, true);
    check_bound(1 << 20, 64 << 20, 64 << 20, false);
    check_bound(u64::MAX, GIB, GIB, false);
}

#[tokio::test]
async fn a_message_that_inflates_too_far_is_refused_with_the_numbers_and_the_cure() {
    let message = packed(&vec![0; (INFLATED_FLOOR_BYTES as usize) + 1], Encoding::Deflate);
    let text = format!(
        "Decompressed data size exceeds the maximum allowed value of 16777216 bytes for {} compressed bytes: 200 times as \
         many, or 16777216 if that is more. Send this data uncompressed.",
        message.len()
    );
    assert_eq!(inflated(message, Encoding::Deflate, 1 << 30).await, Err(text));
}

#[tokio::test]
async fn damaged_streams_are_refused() {
    for encoding in [Encoding::Gzip, Encoding::Deflate] {
        let whole = packed(&noise(300_000), encoding);
        for end in [0, 1, 3, 11, 5000, STEP_BYTES_IN, whole.len() / 2, whole.len() - 1] {
            assert!(inflated(whole.slice(..end), encoding, MIB).await.is_err(), "{end} bytes, {encoding:?}");
        }
        assert!(inflated(Bytes::from(noise(300_000)), encoding, MIB).await.is_err());
        let mut wrong = whole.to_vec();
        wrong[whole.len() - 1] ^= 1;
        assert!(inflated(wrong.into(), encoding, MIB).await.is_err(), "a wrong checksum, {encoding:?}");
    }
}

#[tokio::test]
async fn a_long_stream_of_nothing_is_read_in_steps() {
    // Empty members: each has twenty bytes, and needs a new decoder state.
    let stream = Bytes::from(packed(b"", Encoding::Gzip).repeat(20_000));
    let mut work = Inflate {
        decoder: Decoder::new(stream.clone(), Encoding::Gzip),
        sink: Heap::default(),
        bound: Bound::of(0, 0),
        left: 0,
    };
    let mut steps = 1;
    while work.step(StepBudget { bytes_in: STEP_BYTES_IN, bytes_out: 1 }).is_ok_and(|done| done == Progress::More) {
        steps += 1;
    }
    assert_eq!(steps, stream.len().div_ceil(STEP_BYTES_IN));
    assert_eq!(work.decoder.feed().from.remaining(), 0);
    assert_eq!(inflated(stream, Encoding::Gzip, 0).await, Ok(vec![]));
}

#[tokio::test]
async fn a_full_sink_ends_the_work() {
    let full = Some(Status::unavailable("the sink is full"));
    let sink = Heap { full, ..Heap::default() };
    let ended = inflate(packed(&noise(9000), Encoding::Gzip), Encoding::Gzip, 9000, sink, &Lane::new()).await;
    assert!(matches!(ended, Err(InflateError::Refused(status)) if status.message == "the sink is full"));
}
