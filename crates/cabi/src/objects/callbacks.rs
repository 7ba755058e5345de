//! How are the callbacks of a backend called?
//!
//! Each type below is one kind of function of Triton's interface. A backend passes values of it. By the contract, the
//! function has this signature and may be called as long as the object that it was passed for exists. A function that
//! returns an error gives it to the caller. `A` is the allocator, and `R` the request or response.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Arc;

use nerite_request::Status;

use super::{BufferAttributes, ErrorObject};
use crate::fault::{Fault, within};
use crate::table::Handle;

type Returned = Handle<ErrorObject>;

/// `TRITONSERVER_ResponseAllocatorAllocFn_t`.
pub type AllocateFn<A> = unsafe extern "C-unwind" fn(
    Handle<A>,
    *const c_char,
    usize,
    u32,
    i64,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
    *mut u32,
    *mut i64,
) -> Returned;
/// `TRITONSERVER_ResponseAllocatorReleaseFn_t`.
pub type ReleaseFn<A> = unsafe extern "C-unwind" fn(Handle<A>, *mut c_void, *mut c_void, usize, u32, i64) -> Returned;
/// `TRITONSERVER_ResponseAllocatorStartFn_t`.
pub type StartFn<A> = unsafe extern "C-unwind" fn(Handle<A>, *mut c_void) -> Returned;
/// `TRITONSERVER_ResponseAllocatorQueryFn_t`.
pub type QueryFn<A> =
    unsafe extern "C-unwind" fn(Handle<A>, *mut c_void, *const c_char, *mut usize, *mut u32, *mut i64) -> Returned;
/// `TRITONSERVER_ResponseAllocatorBufferAttributesFn_t`.
pub type DescribeFn<A> = unsafe extern "C-unwind" fn(
    Handle<A>,
    *const c_char,
    Handle<BufferAttributes>,
    *mut c_void,
    *mut c_void,
) -> Returned;
/// `TRITONSERVER_InferenceResponseCompleteFn_t`.
pub type RespondFn<R> = unsafe extern "C-unwind" fn(Handle<R>, u32, *mut c_void);
/// `TRITONSERVER_InferenceRequestReleaseFn_t`.
pub type RequestReleaseFn<R> = unsafe extern "C-unwind" fn(Handle<R>, u32, *mut c_void);

/// `TRITONSERVER_InferenceTraceActivityFn_t`.
pub type ActivityFn<T> = unsafe extern "C-unwind" fn(Handle<T>, u32, u64, *mut c_void);
/// `TRITONSERVER_InferenceTraceTensorActivityFn_t`.
pub type TensorActivityFn<T> = unsafe extern "C-unwind" fn(
    Handle<T>,
    u32,
    *const c_char,
    u32,
    *const c_void,
    usize,
    *const i64,
    u64,
    u32,
    i64,
    *mut c_void,
);
/// `TRITONSERVER_InferenceTraceReleaseFn_t`.
pub type TraceReleaseFn<T> = unsafe extern "C-unwind" fn(Handle<T>, *mut c_void);

/// An address of a backend, which is stored and passed back.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Kept(pub *mut c_void);

// SAFETY: it is only an address. Code that accesses the memory there proves that access itself. The backend gets it back on any thread, as the
// interface says.
unsafe impl Send for Kept {}
// SAFETY: as above.
unsafe impl Sync for Kept {}

/// Memory of a backend, and the address that the backend gave with it.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// The first byte.
    pub base: Kept,
    /// The address that the backend gets with it.
    pub userp: Kept,
    /// How many bytes were requested.
    pub bytes: usize,
    /// 0 for the host, 1 for page-locked memory, 2 for a GPU.
    pub kind: u32,
    /// The number of the GPU.
    pub id: i64,
}

/// Requests memory for an output of this many bytes, preferably of this kind.
pub fn allocate<A>(
    function: AllocateFn<A>,
    allocator: Handle<A>,
    output: &str,
    (bytes, kind, id): (usize, u32, i64),
    userp: Kept,
) -> Result<Memory, Status> {
    let name = CString::new(output).map_err(|_| Status::internal("an output's name has a zero in it"))?;
    let (mut base, mut own) = (std::ptr::null_mut(), std::ptr::null_mut());
    let (mut actual_kind, mut actual_id) = (kind, id);
    // SAFETY: the function has this signature (see above), the name ends with a zero, and the four places are variables of this call.
    let returned = unsafe {
        function(
            allocator,
            name.as_ptr(),
            bytes,
            kind,
            id,
            userp.0,
            &raw mut base,
            &raw mut own,
            &raw mut actual_kind,
            &raw mut actual_id,
        )
    };
    read(returned)?;
    Ok(Memory { base: Kept(base), userp: Kept(own), bytes, kind: actual_kind, id: actual_id })
}

/// Releases memory.
pub fn release<A>(function: ReleaseFn<A>, allocator: Handle<A>, memory: &Memory) -> Result<(), Status> {
    // SAFETY: the function has this signature (see above), and is called once for memory that the allocator gave, with what it gave.
    read(unsafe { function(allocator, memory.base.0, memory.userp.0, memory.bytes, memory.kind, memory.id) })
}

/// Announces the outputs of another response.
pub fn start<A>(function: StartFn<A>, allocator: Handle<A>, userp: Kept) -> Result<(), Status> {
    // SAFETY: the function has this signature (see above).
    read(unsafe { function(allocator, userp.0) })
}

/// Queries which kind of memory an output would get, preferably of this kind.
pub fn query<A>(
    function: QueryFn<A>,
    allocator: Handle<A>,
    output: &str,
    (mut kind, mut id): (u32, i64),
    userp: Kept,
) -> Result<(u32, i64), Status> {
    let name = CString::new(output).map_err(|_| Status::internal("an output's name has a zero in it"))?;
    // SAFETY: the function has this signature (see above), the name ends with a zero, a NULL size is allowed, and the two places are
    // variables of this call.
    read(unsafe { function(allocator, userp.0, name.as_ptr(), std::ptr::null_mut(), &raw mut kind, &raw mut id) })?;
    Ok((kind, id))
}

/// Lets the backend describe memory that its allocator gave, by these attributes.
pub fn describe<A>(
    function: DescribeFn<A>,
    allocator: Handle<A>,
    output: &str,
    attributes: Handle<BufferAttributes>,
    (userp, own): (Kept, Kept),
) -> Result<(), Status> {
    let name = CString::new(output).map_err(|_| Status::internal("an output's name has a zero in it"))?;
    // SAFETY: the function has this signature (see above), and the name ends with a zero.
    read(unsafe { function(allocator, name.as_ptr(), attributes, userp.0, own.0) })
}

/// Passes a response to the backend, which owns it from then on.
pub fn respond<R>(owner: &Arc<str>, function: RespondFn<R>, response: Handle<R>, flags: u32, userp: Kept) {
    // SAFETY: the function has this signature (see above).
    within(owner, || unsafe { function(response, flags, userp.0) });
}

/// Returns a request to the backend.
pub fn give_back<R>(owner: &Arc<str>, function: RequestReleaseFn<R>, request: Handle<R>, flags: u32, userp: Kept) {
    // SAFETY: the function has this signature (see above).
    within(owner, || unsafe { function(request, flags, userp.0) });
}

/// Reports a point of a request: its number and its time.
pub fn note_activity<T>(
    owner: &Arc<str>,
    function: ActivityFn<T>,
    trace: Handle<T>,
    (activity, ns): (u32, u64),
    userp: Kept,
) {
    // SAFETY: the function has this signature (see above).
    within(owner, || unsafe { function(trace, activity, ns, userp.0) });
}

/// A tensor of a request, as it is reported to a function.
pub struct NotedTensor<'a> {
    /// The number of the point.
    pub activity: u32,
    /// Its name.
    pub name: &'a CStr,
    /// The number of its datatype.
    pub datatype: u32,
    /// Its first byte.
    pub base: *const u8,
    /// How many bytes it has.
    pub bytes: usize,
    /// Its dimensions.
    pub shape: &'a [i64],
    /// The kind of its memory, and the number of the GPU.
    pub memory: (u32, i64),
}

/// Reports a tensor.
pub fn note_tensor<T>(
    owner: &Arc<str>,
    function: TensorActivityFn<T>,
    trace: Handle<T>,
    tensor: &NotedTensor<'_>,
    userp: Kept,
) {
    let NotedTensor { activity, name, datatype, base, bytes, shape, memory } = *tensor;
    let (shape, dims) = (shape.as_ptr(), shape.len() as u64);
    let call = || {
        // SAFETY: the function has this signature (see above). The name ends with a zero, `shape` has `dims` numbers, and the caller keeps the tensor's
        // buffer, which has `bytes` bytes at `base`, during this call.
        unsafe {
            function(
                trace,
                activity,
                name.as_ptr(),
                datatype,
                base.cast(),
                bytes,
                shape,
                dims,
                memory.0,
                memory.1,
                userp.0,
            );
        };
    };
    within(owner, call);
}

/// Returns a trace to its owner.
pub fn release_trace<T>(owner: &Arc<str>, function: TraceReleaseFn<T>, trace: Handle<T>, userp: Kept) {
    // SAFETY: the function has this signature (see above), and is called once for a trace.
    within(owner, || unsafe { function(trace, userp.0) });
}

/// Reads and deletes the error that a function returned.
fn read(returned: Returned) -> Result<(), Status> {
    if returned.is_null() {
        return Ok(());
    }
    let status_of = |fault: Fault| fault.into_status("the error that a function of its own returned");
    Err(returned.take().map_err(status_of)?.status())
}
