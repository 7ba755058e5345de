//! How are descriptors kept from being inherited by child processes?

/// Marks all descriptors except the standard streams as close-on-exec. The server's own have that flag already, but it may have inherited others, and
/// libraries may have opened some. Linux before 5.11 does not support it.
pub fn close_all_on_exec() {
    const FIRST: libc::c_uint = 3;
    let (last, flag) = (libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
    // SAFETY: the call reads no memory, and with this flag it closes nothing: it changes what a later exec does.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, FIRST, last, flag) };
}
