//! What does the library, which has no std, do on a panic?
//!
//! No code in it can panic. The linker then removes this handler, and a test of the library's imports checks that.

use core::panic::PanicInfo;

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    // SAFETY: abort has no precondition. No caller can continue, and a panic must not unwind through C.
    unsafe { libc::abort() }
}
