//! Where does ONNX Runtime get its memory for tensors on the host?
//!
//! The server allocates it, so that the memory of runs is bounded, and unused memory goes back to the system ([`nerite_memory::allocate_for_run`]).
//! The library's own arena has no such bound, and keeps the memory of a run until the model is unloaded.
//!
//! The library does not check whether an allocation returned null. Its own allocators throw `std::bad_alloc`, and a run that meets one returns an
//! error. So ours throws it too, by the function of the C++ library that does nothing else. An exception inside a parallel operator ends the process. So
//! small allocations are hardly ever refused there, and models with operators that make large ones there run in a process of their own by default.

use std::ffi::{CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};

use nerite_backend::onnx::Node;
use nerite_memory::{allocate_for_run, can_throw_bad_alloc, free_of_run, throw_bad_alloc};
use ort::AsPointer;
use ort::environment::Environment;
use ort::sys;

use crate::value::done;

/// The version of the library's interface that has these three functions and no more. The library reads no others then.
const INTERFACE_VERSION: u32 = 17;

/// Operators that allocate on the threads of a pool, where nobody catches an exception. Seen in version 1.31: Attention, GroupQueryAttention and
/// SparseAttention, with FP16. The others are of the same family. `tests/hostile/test_parallel_allocations.py` looks for operators that are missing.
const ALLOCATES_IN_PARALLEL: &[&str] = &[
    "Attention",
    "DecoderMaskedMultiHeadAttention",
    "GroupQueryAttention",
    "MultiHeadAttention",
    "PagedAttention",
    "SparseAttention",
];

/// The first operator of these, or inside of them, that allocates on several threads.
pub fn allocates_in_parallel(nodes: &[Node]) -> Option<&str> {
    nodes.iter().find_map(|node| {
        let is_one = ALLOCATES_IN_PARALLEL.contains(&node.op.as_str());
        is_one.then_some(node.op.as_str()).or_else(|| allocates_in_parallel(&node.inner))
    })
}

/// The type of `OrtAllocator::Alloc` in the bindings, which do not say that it may throw.
type Alloc = unsafe extern "system" fn(*mut sys::OrtAllocator, usize) -> *mut c_void;
/// The same of a function that may throw.
type UnwindingAlloc = unsafe extern "system-unwind" fn(*mut sys::OrtAllocator, usize) -> *mut c_void;

/// The structure that the library reads, and then the allocator's own data.
#[repr(C)]
struct Allocator {
    functions: sys::OrtAllocator,
    info: *const sys::OrtMemoryInfo,
}

/// Gives all sessions of this environment that want it ([`USE_ENV_ALLOCATORS`]) an allocator for the host. Returns false if the library at `path` has no
/// C++ library that could throw.
pub fn register(environment: &Environment, path: &Path) -> Result<bool, ort::Error> {
    let library = CString::new(path.as_os_str().as_bytes());
    if !library.is_ok_and(|library| can_throw_bad_alloc(&library)) {
        return Ok(false);
    }
    let mut info = ptr::null_mut();
    let (kind, memory) = (sys::OrtAllocatorType::OrtDeviceAllocator, sys::OrtMemType::OrtMemTypeDefault);
    // SAFETY: `info` is a place for one handle.
    done(unsafe { (ort::api().CreateCpuMemoryInfo)(kind, memory, &raw mut info) })?;
    let alloc: UnwindingAlloc = alloc;
    // SAFETY: both function types have the same parameters and the same convention. The function may unwind. Its caller, which is C++ and allocates,
    // expects that.
    let alloc = unsafe { std::mem::transmute::<UnwindingAlloc, Alloc>(alloc) };
    // SAFETY: a structure of a number and optional functions.
    let empty = unsafe { sys::OrtAllocator::default() };
    let functions = sys::OrtAllocator {
        version: INTERFACE_VERSION,
        Alloc: Some(alloc),
        Free: Some(free),
        Info: Some(memory_info),
        ..empty
    };
    // Sessions use it until the process ends.
    let allocator = Box::leak(Box::new(Allocator { functions, info }));
    let environment = environment.ptr().cast_mut();
    // SAFETY: the environment is alive; the allocator begins with the structure that the library reads, and lives for ever.
    done(unsafe { (ort::api().RegisterAllocator)(environment, ptr::from_mut(allocator).cast()) })?;
    Ok(true)
}

/// The option of a session that takes the environment's allocator.
pub const USE_ENV_ALLOCATORS: &str = "session.use_env_allocators";

/// # Safety
/// The library calls it with the allocator that [`register`] made.
unsafe extern "system-unwind" fn alloc(_this: *mut sys::OrtAllocator, len: usize) -> *mut c_void {
    if len == 0 {
        return ptr::null_mut();
    }
    if let Ok(start) = allocate_for_run(len) {
        return start.as_ptr().cast();
    }
    // SAFETY: the library expects it, as its own allocators throw. No value with a destructor is alive here.
    unsafe { throw_bad_alloc() }
}

/// # Safety
/// The library frees what `alloc` returned, once.
unsafe extern "system" fn free(_this: *mut sys::OrtAllocator, memory: *mut c_void) {
    if let Some(start) = NonNull::new(memory.cast::<u8>()) {
        // SAFETY: as our caller promised.
        unsafe { free_of_run(start) };
    }
}

/// # Safety
/// As `alloc`.
unsafe extern "system" fn memory_info(this: *const sys::OrtAllocator) -> *const sys::OrtMemoryInfo {
    // SAFETY: `this` begins an `Allocator`, which lives for ever.
    unsafe { (*this.cast::<Allocator>()).info }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_that_allocate_in_parallel_are_found_inside_of_others() {
        let node = |op: &str, inner| Node { op: op.to_owned(), inner, ..Node::default() };
        assert_eq!(allocates_in_parallel(&[node("MatMul", Vec::new()), node("Softmax", Vec::new())]), None);
        let inside = node("If", vec![node("GroupQueryAttention", Vec::new())]);
        assert_eq!(allocates_in_parallel(&[inside]), Some("GroupQueryAttention"));
    }
}
