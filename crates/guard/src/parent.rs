//! How does a model's process end, with all processes that it started, when the server is killed?
//!
//! The kernel can send a process a signal when the thread that started it ends. SIGKILL would end the process alone, and programs that the model
//! started would live on. So another signal is used, whose handler kills the whole group. It is a handler of compiled code, because Python's own ones
//! wait until the interpreter has time.

use core::mem::MaybeUninit;
use core::ptr;

use libc::c_int;

use crate::{Errno, signal};

/// The last of the real-time signals, which programs do not use by themselves. It is the same number for all C libraries.
const SERVER_HAS_ENDED: c_int = 64;

/// Makes the kernel end this process and its group when the thread that started it ends. Until this returns, the earlier setting is in force.
pub(crate) fn end_with_parent() -> Result<(), Errno> {
    // SAFETY: all fields are integers, sets of bits or an optional function, so zeros are a value.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = end_group as extern "C" fn(c_int) as *const () as usize;
    action.sa_flags = libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: `action` is a whole structure that outlives the call, and the old action is not asked for.
    if unsafe { libc::sigaction(SERVER_HAS_ENDED, &raw const action, ptr::null_mut()) } != 0 {
        return Err(signal::errno());
    }
    // SAFETY: the option takes one number and touches no memory.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, SERVER_HAS_ENDED as libc::c_ulong) } != 0 {
        return Err(signal::errno());
    }
    Ok(())
}

/// The handler. A process that this one forked may have the handler too. It is not the leader of the group, so it ends alone.
extern "C" fn end_group(_: c_int) {
    // SAFETY: it has no precondition, and a signal handler may call it.
    let own = unsafe { libc::getpid() };
    // SAFETY: as above.
    if unsafe { libc::getpgrp() } == own {
        // By 0 the group of the caller is meant. It fails in a sandbox.
        // SAFETY: it takes numbers only, and a signal handler may call it.
        unsafe { libc::kill(0, libc::SIGKILL) };
    }
    // SAFETY: as above.
    unsafe { libc::kill(own, libc::SIGKILL) };
}
