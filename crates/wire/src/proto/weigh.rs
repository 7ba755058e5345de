//! How much work is reading a message, estimated before it is read?

use nerite_request::limits::{COPIED_BYTES, INLINE_WORK_BYTES_MAX};

use super::Chain;
use super::chain::Cursor;
use super::read::{Malformed, Read as _, Wire};

const RAW_INPUT_CONTENTS: u32 = 7;
/// The alignment with which a tensor of any datatype is not copied.
const ALIGN: usize = 8;

impl Chain {
    /// Whether a front thread may read this inference request: its small fields are few, and its raw tensors are not copied. This check takes no
    /// longer than reading a light message.
    pub fn is_light(&self) -> bool {
        self.len() <= INLINE_WORK_BYTES_MAX || self.is_light_request().unwrap_or(false)
    }

    fn is_light_request(&self) -> Result<bool, Malformed> {
        let (mut cursor, mut work) = (self.cursor(), 0usize);
        loop {
            let before = cursor.left();
            let Some((number, wire)) = cursor.tag()? else { return Ok(true) };
            work = work.saturating_add(match wire {
                // The length of a group is known only after its contents are read.
                Wire::GroupStart | Wire::GroupEnd => return Ok(false),
                Wire::Len if number == RAW_INPUT_CONTENTS => raw_work(&mut cursor)?,
                _ => {
                    cursor.skip_field(number, wire)?;
                    before - cursor.left()
                }
            });
            if work > INLINE_WORK_BYTES_MAX {
                return Ok(false);
            }
        }
    }
}

/// The work for a raw tensor. A tensor that is aligned and in one piece is not copied.
fn raw_work(cursor: &mut Cursor<'_>) -> Result<usize, Malformed> {
    const HEAD_BYTES: usize = 8;
    let len = cursor.length()?;
    let run = cursor.run(len)?;
    let is_kept = run.len() <= 1 && run.iter().all(|piece| piece.as_ptr().addr().is_multiple_of(ALIGN));
    Ok(HEAD_BYTES + if is_kept { 0 } else { len / COPIED_BYTES })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// A field of `len` zeros.
    fn field(number: u8, len: usize) -> Vec<u8> {
        let mut out = vec![number << 3 | 2];
        prost::encoding::encode_varint(len as u64, &mut out);
        out.resize(out.len() + len, 0);
        out
    }

    #[track_caller]
    fn check(pieces: &[Vec<u8>], light: bool) {
        let mut chain = Chain::new();
        for piece in pieces {
            chain.push(Bytes::from(piece.clone()));
        }
        assert_eq!(chain.is_light(), light);
    }

    #[test]
    fn small_messages_are_light_whatever_they_hold() {
        check(&[], true);
        check(&[field(5, 0).repeat(1000)], true);
        check(&[vec![0xff; 1000]], true);
    }

    #[test]
    fn many_small_fields_or_typed_contents_are_work() {
        check(&[field(5, 0).repeat(INLINE_WORK_BYTES_MAX)], false);
        check(&[field(5, INLINE_WORK_BYTES_MAX)], false);
        check(&[field(7, 0).repeat(INLINE_WORK_BYTES_MAX)], false);
        check(&[vec![0x0b; 2 * INLINE_WORK_BYTES_MAX]], false);
        check(&[vec![0xff; 2 * INLINE_WORK_BYTES_MAX]], false);
    }

    #[test]
    fn a_large_raw_tensor_is_work_only_if_it_is_copied() {
        let tensor = vec![0u8; 64 << 20];
        let head = field(7, tensor.len())[..5].to_vec();
        check(&[head.clone(), tensor.clone()], true);
        check(&[head.clone(), tensor[..1 << 20].to_vec(), tensor[1 << 20..].to_vec()], false);
    }
}
