//! What does a library without std do where Rust code would panic?
//!
//! Nothing in it does, and the tests of what it imports hold it to that: with no call left, the linker drops this.

use core::panic::PanicInfo;

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    // SAFETY: abort has no obligation. There is no caller that could go on, and no stack to unwind through C.
    unsafe { libc::abort() }
}
