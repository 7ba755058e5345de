//! How is memory counted that a C++ library allocates while a model runs?
//!
//! ONNX Runtime makes lists of results, and each string of a tensor, by C++'s `operator new`. A program may replace that operator and `operator delete`.
//! A program that links this crate, and exports the functions by the linker's `--export-dynamic-symbol`, does so: the dynamic linker finds them before
//! those of the C++ library. They allocate by `malloc` as those do. During a model's run they also count what the run has, and refuse what it may not
//! have ([`charge_run`]).
//!
//! The forms for alignments above 16 bytes are those of the C++ library, and are not counted. The crate has no functions for Rust:
//!
//! ```
//! use nerite_cpp_heap as _;
//! ```

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use nerite_memory::{charge_run, credit_run, throw_bad_alloc};

/// C++'s `operator new`, for one object and for an array.
macro_rules! operator_new {
    ($($name:ident $symbol:literal)*) => {$(
        /// # Safety
        /// Called by C++ code.
        #[unsafe(export_name = $symbol)]
        unsafe extern "C-unwind" fn $name(len: usize) -> *mut c_void {
            let Some(memory) = allocate(len) else {
                // SAFETY: as our caller promised.
                unsafe { throw_bad_alloc() }
            };
            memory.as_ptr()
        }
    )*};
}

/// The same without an exception. The second argument is an empty object.
macro_rules! operator_new_nothrow {
    ($($name:ident $symbol:literal)*) => {$(
        #[unsafe(export_name = $symbol)]
        extern "C" fn $name(len: usize, _nothrow: *const c_void) -> *mut c_void {
            allocate(len).map_or(ptr::null_mut(), NonNull::as_ptr)
        }
    )*};
}

/// C++'s `operator delete`. Some forms have a second argument: the size, or an empty object.
macro_rules! operator_delete {
    ($($name:ident $symbol:literal)*) => {$(
        /// # Safety
        /// Called by C++ code with null, or with what `operator new` returned.
        #[unsafe(export_name = $symbol)]
        unsafe extern "C" fn $name(memory: *mut c_void, _other: usize) {
            // SAFETY: as our caller promised.
            unsafe { free(memory) };
        }
    )*};
}

operator_new! { new "_Znwm" new_array "_Znam" }
operator_new_nothrow! { new_nothrow "_ZnwmRKSt9nothrow_t" new_array_nothrow "_ZnamRKSt9nothrow_t" }
operator_delete! {
    delete "_ZdlPv" delete_sized "_ZdlPvm" delete_nothrow "_ZdlPvRKSt9nothrow_t"
    delete_array "_ZdaPv" delete_array_sized "_ZdaPvm" delete_array_nothrow "_ZdaPvRKSt9nothrow_t"
}

/// `len` bytes, or none if the system has no more, or if this thread's run may not have them.
fn allocate(len: usize) -> Option<NonNull<c_void>> {
    // SAFETY: any size is allowed.
    let memory = NonNull::new(unsafe { libc::malloc(len.max(1)) })?;
    // SAFETY: `malloc` returned it.
    if charge_run(|| unsafe { libc::malloc_usable_size(memory.as_ptr()) }).is_err() {
        // SAFETY: as above, and no other code has the pointer.
        unsafe { libc::free(memory.as_ptr()) };
        return None;
    }
    Some(memory)
}

/// # Safety
/// `memory` is null, or `malloc` returned it and nobody uses it any more.
unsafe fn free(memory: *mut c_void) {
    if !memory.is_null() {
        // SAFETY: as our caller promised.
        credit_run(|| unsafe { libc::malloc_usable_size(memory) });
    }
    // SAFETY: as our caller promised; null is allowed.
    unsafe { libc::free(memory) };
}
