//! How does the guard unmap memory without blocking other threads that map memory?

use libc::c_void;

use crate::{Errno, signal};

/// Memory is unmapped in pieces of this size, because other threads cannot map memory while the kernel unmaps one: 1 to 8 ms.
const PIECE_BYTES: usize = 16 << 20;

/// Unmaps `len` bytes from `start` on.
///
/// # Safety
/// The range is mapped and begins at a page. The caller owns it, and nobody uses it any more.
pub(crate) unsafe fn unmap_in_pieces(start: *mut c_void, len: usize) -> Result<(), Errno> {
    let mut done = 0;
    while done < len {
        let piece = PIECE_BYTES.min(len - done);
        // SAFETY: `done` is less than `len`, so the piece begins within the range.
        let start = unsafe { start.byte_add(done) };
        // SAFETY: the caller owns the range, which nobody uses. Pieces do not overlap, and each begins at a page, because `PIECE_BYTES` is a multiple of a page.
        if unsafe { libc::munmap(start, piece) } != 0 {
            return Err(signal::errno());
        }
        done += piece;
    }
    Ok(())
}
