//! How does a function that C++ code calls report that there is no memory?

use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The address of `std::__throw_bad_alloc`, or null if it has not been found.
static THROW: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Throws `std::bad_alloc`.
type Throw = unsafe extern "C-unwind" fn() -> !;

/// Whether [`throw_bad_alloc`] can throw. It can if `library` is loaded already, and is the C++ library or depends on it.
pub fn can_throw_bad_alloc(library: &CStr) -> bool {
    // SAFETY: a C string; RTLD_NOLOAD only finds a library that is loaded already, and runs no initialiser.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW) };
    if handle.is_null() {
        return false;
    }
    // SAFETY: a handle from dlopen, which is never closed, and a C string.
    let throw = unsafe { libc::dlsym(handle, c"_ZSt17__throw_bad_allocv".as_ptr()) };
    if !throw.is_null() {
        THROW.store(throw, Ordering::Release);
    }
    !throw.is_null()
}

/// Throws `std::bad_alloc`. Aborts the process if no C++ library is loaded, because no code could catch the exception.
///
/// # Safety
/// The caller was called by C++ code that expects the exception, and holds no value with a destructor.
#[expect(
    clippy::disallowed_methods,
    reason = "the function must not return, and without a C++ library nothing calls it"
)]
pub unsafe fn throw_bad_alloc() -> ! {
    if THROW.load(Ordering::Acquire).is_null() {
        can_throw_bad_alloc(c"libstdc++.so.6");
    }
    let Some(throw) = NonNull::new(THROW.load(Ordering::Acquire)) else { std::process::abort() };
    // SAFETY: the C++ library documents this name as `void std::__throw_bad_alloc()`, which does not return.
    let throw = unsafe { std::mem::transmute::<NonNull<c_void>, Throw>(throw) };
    // SAFETY: our caller made the same promise.
    unsafe { throw() }
}
