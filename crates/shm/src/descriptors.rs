//! Which descriptors does a child process get that was not given any?

/// Has all descriptors beyond the standard streams closed in programs that this process starts from now on: those of its own are so
/// already, but it may have inherited others, or a library may have opened some. Systems before Linux 5.11 cannot.
pub fn close_all_on_exec() {
    const FIRST: libc::c_uint = 3;
    let (last, flag) = (libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
    // SAFETY: the call reads no memory, and with this flag it closes nothing: it changes what a later exec does.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, FIRST, last, flag) };
}
