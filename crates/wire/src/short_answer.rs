//! Where is the memory for a short answer?
//!
//! ```text
//!   block of a thread:  [ answer, sent │ answer, being sent │ next answer │ free ]
//! ```
//! Each thread cuts its short answers from a block. When the block is used up and all of its answers were sent, it is used from its beginning again. So
//! answers that are sent one after the other need no allocation. If some of them were not sent yet, the thread takes another block. An answer that
//! is never sent keeps its block, which is small.

use std::cell::RefCell;

use bytes::{Bytes, BytesMut};

/// The size of a block.
const BLOCK_BYTES: usize = 1024;
/// The longest answer that is cut from a block.
const SHORT_BYTES_MAX: usize = 512;

thread_local! {
    /// The free part of the thread's block.
    static FREE: RefCell<BytesMut> = RefCell::new(BytesMut::new());
}

/// An empty buffer for an answer of at most `bytes` bytes.
pub(crate) fn buffer(bytes: usize) -> BytesMut {
    if bytes > SHORT_BYTES_MAX {
        return BytesMut::with_capacity(bytes);
    }
    // An error means that the thread ends.
    FREE.try_with(|free| cut(&mut free.borrow_mut(), bytes)).unwrap_or_else(|_| BytesMut::with_capacity(bytes))
}

fn cut(free: &mut BytesMut, bytes: usize) -> BytesMut {
    if free.capacity() < bytes {
        free.reserve(BLOCK_BYTES);
    }
    let rest = free.split_off(bytes);
    std::mem::replace(free, rest)
}

/// A copy of a text.
pub(crate) fn copy(text: &[u8]) -> Bytes {
    let mut copied = buffer(text.len());
    copied.extend_from_slice(text);
    copied.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the answers of these lengths lie, as offsets from the first. Each is dropped after `held` more were made.
    #[track_caller]
    fn check(lengths: &[usize], held: usize, expected: &[Option<usize>]) {
        let (mut free, mut answers, mut first) = (BytesMut::new(), std::collections::VecDeque::new(), None);
        for (length, expected) in lengths.iter().zip(expected) {
            let mut answer = cut(&mut free, *length);
            assert!(answer.is_empty() && answer.capacity() >= *length);
            answer.resize(*length, 7);
            let place = answer.as_ptr() as usize;
            let offset = place.wrapping_sub(*first.get_or_insert(place));
            assert_eq!(Some(offset).filter(|offset| *offset < BLOCK_BYTES), *expected, "{length} of {lengths:?}");
            answers.push_back(answer.freeze());
            while answers.len() > held {
                answers.pop_front();
            }
        }
        assert!(answers.iter().all(|answer| answer.iter().all(|byte| *byte == 7)));
    }

    #[test]
    fn a_block_is_used_again_once_all_of_its_answers_were_sent() {
        check(&[400, 400, 400, 400], 0, &[Some(0), Some(400), Some(0), Some(400)]);
        check(&[512, 512, 512], 1, &[Some(0), Some(512), None]);
        check(&[1000, 24, 1], 2, &[Some(0), Some(1000), None]);
    }

    #[test]
    fn answers_beside_each_other_do_not_mix() {
        let texts: Vec<Vec<u8>> = (0..40).map(|length| vec![length; usize::from(length) * 20]).collect();
        let copies: Vec<Bytes> = texts.iter().map(|text| copy(text)).collect();
        assert!(copies.iter().zip(&texts).all(|(copied, text)| copied[..] == text[..]));
    }
}
