//! In pieces of which size is a mapping unmapped?

use std::time::Duration;

/// The first piece. The kernel takes about half a millisecond for 16 MiB that were used, and 3 ms if it frees their pages as well.
const FIRST_BYTES: usize = 16 << 20;
/// The smallest piece.
const BYTES_MIN: usize = 2 << 20;
/// The largest piece. A sparse mapping may have pages at its end only, so that a piece after many quick ones takes long: 20 ms for this size, measured.
/// A sparse mapping of 32 TiB, the most that an owner may have, takes 1.6 s in 262,147 pieces.
const BYTES_MAX: usize = 128 << 20;
/// After a piece that took longer, the next one has half the size.
const LONG: Duration = Duration::from_millis(4);
/// After a piece that took less, the next one has twice the size.
const SHORT: Duration = Duration::from_millis(1);

/// The sizes of the pieces, each chosen by the time that the one before took. Threads of this process that map or unmap memory wait while the kernel
/// unmaps one piece.
pub(super) struct Pieces {
    left: usize,
    size: usize,
}

impl Pieces {
    /// The pieces of `len` bytes.
    pub(super) fn of(len: usize) -> Pieces {
        Pieces { left: len, size: FIRST_BYTES }
    }

    /// The size of the next piece. `None` if nothing is left.
    pub(super) fn next(&mut self) -> Option<usize> {
        let piece = self.size.min(self.left);
        self.left -= piece;
        (piece > 0).then_some(piece)
    }

    /// The last piece took this time.
    pub(super) fn took(&mut self, time: Duration) {
        if time > LONG {
            self.size = (self.size / 2).max(BYTES_MIN);
        } else if time < SHORT {
            self.size = (self.size * 2).min(BYTES_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// The pieces of `len` bytes, if each takes so many microseconds for a MiB.
    #[track_caller]
    fn check(len: usize, us_for_mib: u64, first: &[usize], count: usize) {
        let (mut pieces, mut found) = (Pieces::of(len), Vec::new());
        while let Some(piece) = pieces.next() {
            found.push(piece);
            pieces.took(Duration::from_micros((piece / MIB) as u64 * us_for_mib));
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
        check(32 << 40, 0, &[16 * MIB, 32 * MIB, 64 * MIB, 128 * MIB, 128 * MIB], 262_147);
    }

    #[test]
    fn the_used_end_of_a_sparse_mapping_is_unmapped_in_small_pieces() {
        let (len, used) = (32 << 30, 1 << 30);
        let (mut pieces, mut at, mut within_used) = (Pieces::of(len), 0, Vec::new());
        while let Some(piece) = pieces.next() {
            at += piece;
            let used_bytes = at.saturating_sub(len - used).min(piece);
            if used_bytes > 0 {
                within_used.push(piece);
            }
            // 73 ms for 1 GiB.
            pieces.took(Duration::from_micros((used_bytes / MIB) as u64 * 71));
        }
        assert_eq!(at, len);
        assert_eq!(within_used[..3], [128 * MIB, 64 * MIB, 32 * MIB]);
        assert!(within_used[2..].iter().all(|piece| *piece <= 32 * MIB));
    }
}
