//! Do bodies arrive whole, aligned and within their limits?

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use http_body::Frame;
use nerite_memory::{Reason, copied_bytes};

use super::*;
use crate::limits::SPOOL_BYTES_MIN;

/// A body that gives its pieces one after the other.
struct Pieces(VecDeque<Bytes>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }
}

fn run(body: &[u8], piece: usize, expected: Expected) -> Result<Received, Failure> {
    let pieces = Pieces(body.chunks(piece).map(Bytes::copy_from_slice).collect());
    let account = Account::unlimited();
    let mut future = pin!(receive(pieces, expected, &account));
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => panic!("a body that is all there never waits"),
    }
}

fn expected(declared: Option<u64>, tail_at: Option<usize>) -> Expected {
    Expected { declared, tail_at, bytes_max: 1 << 20, too_large: |n, max| Status::invalid(format!("{n} > {max}")) }
}

#[track_caller]
fn check(len: usize, piece: usize, declared: bool, tail_at: Option<usize>, is_frame: bool) {
    let body: Vec<u8> = (0..len).map(|n| n as u8).collect();
    let received = run(&body, piece, expected(declared.then_some(len as u64), tail_at)).unwrap();
    assert_eq!(received.bytes(), body);
    assert_eq!(matches!(received.body, Whole::Frame(_)), is_frame);
    if let Some(at) = tail_at {
        let tail = received.tail(at);
        assert_eq!(tail.private_bytes(), Some(&body[at..]));
        assert!(is_frame || tail.is_empty() || tail.is_aligned(TAIL_ALIGN));
    }
}

#[test]
fn one_piece_stays_where_it_is_unless_its_tensors_are_large_and_crooked() {
    check(300, 300, true, None, true);
    check(300, 300, false, Some(100), true);
    check(100_000, 100_000, true, None, true);
    let crooked = Bytes::from(vec![0; 100_000]);
    let at = 1 + (TAIL_ALIGN - crooked.as_ptr().addr() % TAIL_ALIGN) % TAIL_ALIGN;
    assert!(!can_stay(&crooked, Some(at)));
    assert!(can_stay(&crooked, Some(at - 1)));
    assert!(can_stay(&crooked, Some(99_000)));
}

#[test]
fn many_pieces_become_one_block_with_aligned_tensors() {
    for declared in [true, false] {
        for tail_at in [None, Some(0), Some(1), Some(63), Some(64), Some(200), Some(100_000)] {
            check(100_000, 1000, declared, tail_at, false);
            check(100_000, 33_333, declared, tail_at, false);
        }
    }
    check(0, 1, true, Some(0), true);
}

#[test]
fn each_byte_is_copied_once_and_counted() {
    let before = copied_bytes(Reason::InlineRequest);
    let body = vec![7; 500_000];
    run(&body, 8192, expected(Some(500_000), Some(10))).unwrap();
    // Tests that run at the same time add to the same counter, so only a lower bound can be checked.
    assert!(copied_bytes(Reason::InlineRequest) - before >= 500_000);
}

#[test]
fn a_body_over_its_limit_is_refused_as_soon_as_that_is_known() {
    let declared = run(&[0; 8], 8, expected(Some(2 << 20), None)).unwrap_err();
    assert_eq!((declared.status.message.as_str(), declared.close), ("2097152 > 1048576", false));
    let chunked = run(&vec![0; 2 << 20], 1 << 20, expected(None, None)).unwrap_err();
    assert_eq!((chunked.status.message.as_str(), chunked.close), ("2097152 > 1048576", true));
}

#[test]
fn too_many_tiny_chunks_are_refused_and_as_many_bytes_in_large_ones_are_not() {
    run(&vec![0; CHUNKS_MAX], 1, expected(None, None)).unwrap();
    let failure = run(&vec![0; CHUNKS_MAX + 1], 1, expected(None, None)).unwrap_err();
    assert_eq!(
        failure.status.message,
        "Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks."
    );
    assert!(failure.close);
    run(&vec![0; CHUNKS_MAX + 1], 1, expected(Some(CHUNKS_MAX as u64 + 1), None)).unwrap();
}

fn spooled(body: &[u8], piece: usize, bytes_max: u64) -> Result<Text, Failure> {
    let pieces = Pieces(body.chunks(piece).map(Bytes::copy_from_slice).collect());
    let too_large = |bytes| Status::invalid(format!("{bytes} > {bytes_max}")).into();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(spool(pieces, bytes_max, too_large, &Account::unlimited()))
}

#[test]
fn what_is_too_long_for_memory_goes_to_disk_whole() {
    use std::os::unix::fs::FileExt;

    let body: Vec<u8> = (0..9 << 20).map(|n| (n / 1000) as u8).collect();
    for len in [0, 1, SPOOL_BYTES_MIN] {
        let Text::Memory(text, _) = spooled(&body[..len], 1000, u64::MAX).unwrap() else {
            panic!("{len} bytes on disk")
        };
        assert!(text == body[..len]);
    }
    for len in [SPOOL_BYTES_MIN + 1, body.len()] {
        let Text::Disk { file, len: found } = spooled(&body[..len], 70_000, u64::MAX).unwrap() else { panic!("{len}") };
        let mut text = vec![0; len];
        file.read_exact_at(&mut text, 0).unwrap();
        assert_eq!((found, file.metadata().unwrap().len()), (len as u64, len as u64));
        assert!(text == body[..len]);
    }
    let refused = spooled(&body, 1000, 5_000_500).unwrap_err();
    assert_eq!(refused.status.message, "5001000 > 5000500");
}
