//! How large are the pieces in which a mapping is unmapped?

use std::time::Duration;

/// The first piece. The kernel takes about half a millisecond for 16 MiB that were used, and 3 ms if it frees their pages as well.
const FIRST_BYTES: usize = 16 << 20;
/// The smallest piece.
const BYTES_MIN: usize = 2 << 20;
/// The largest piece. A sparse mapping may have pages only at its end, so a piece may take long after many quick ones: 20 ms for this size, measured. A sparse
/// mapping of 32 TiB takes 1.6 s in 262,147 pieces. The regions of an owner have 40 TiB at the most.
const BYTES_MAX: usize = 128 << 20;
/// After a piece that took longer, the next one has half the size.
const LONG: Duration = Duration::from_millis(4);
/// After a piece that took less, the next one has twice the size.
const SHORT: Duration = Duration::from_millis(1);

/// The size of the next piece, chosen by the time that the previous piece took. Threads of this process that map or unmap memory wait while the kernel
/// unmaps one piece.
pub(super) struct PieceSize(usize);

impl PieceSize {
    /// The size of the first piece.
    pub(super) fn first() -> PieceSize {
        PieceSize(FIRST_BYTES)
    }

    /// In bytes.
    pub(super) fn bytes(&self) -> usize {
        self.0
    }

    /// Notes how long the last piece took.
    pub(super) fn took(&mut self, time: Duration) {
        if time > LONG {
            self.0 = (self.0 / 2).max(BYTES_MIN);
        } else if time < SHORT {
            self.0 = (self.0 * 2).min(BYTES_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Checks the first pieces of `len` bytes, and the number of pieces, if each takes `us_for_mib` microseconds for a MiB.
    #[track_caller]
    fn check(len: usize, us_for_mib: u64, first: &[usize], count: usize) {
        let (mut size, mut left, mut found) = (PieceSize::first(), len, Vec::new());
        while left > 0 {
            let piece = size.bytes().min(left);
            found.push(piece);
            left -= piece;
            size.took(Duration::from_micros((piece / MIB) as u64 * us_for_mib));
        }
        assert_eq!((found.iter().sum::<usize>(), found.len()), (len, count));
        assert_eq!(found[..first.len()], *first);
    }

    #[test]
    fn pieces_grow_while_they_are_quick_and_shrink_while_they_are_slow() {
        check(4096, 0, &[4096], 1);
        check(100 * MIB, 100, &[16 * MIB, 16 * MIB], 7);
        check(1024 * MIB, 25, &[16 * MIB, 32 * MIB, 64 * MIB, 64 * MIB], 18);
        check(32 * MIB, 1000, &[16 * MIB, 8 * MIB, 4 * MIB, 4 * MIB], 4);
        check(20 * MIB, 10_000, &[16 * MIB, 4 * MIB], 2);
        check(64 * MIB, 10_000, &[16 * MIB, 8 * MIB, 4 * MIB, 2 * MIB, 2 * MIB], 21);
    }

    #[test]
    fn a_piece_is_limited_however_quick_those_before_were() {
        // Miri would take minutes for all of them.
        let (len, count) = if cfg!(miri) { (16 << 30, 131) } else { (32 << 40, 262_147) };
        check(len, 0, &[16 * MIB, 32 * MIB, 64 * MIB, 128 * MIB, 128 * MIB], count);
    }

    #[test]
    fn the_used_end_of_a_sparse_mapping_is_unmapped_in_small_pieces() {
        let (len, used) = (32 << 30, 1 << 30);
        let (mut size, mut at, mut within_used) = (PieceSize::first(), 0, Vec::new());
        while at < len {
            let piece = size.bytes().min(len - at);
            at += piece;
            let used_bytes = at.saturating_sub(len - used).min(piece);
            if used_bytes > 0 {
                within_used.push(piece);
            }
            // 73 ms for 1 GiB.
            size.took(Duration::from_micros((used_bytes / MIB) as u64 * 71));
        }
        assert_eq!(within_used[..3], [128 * MIB, 64 * MIB, 32 * MIB]);
        assert!(within_used[2..].iter().all(|piece| *piece <= 32 * MIB));
    }
}
