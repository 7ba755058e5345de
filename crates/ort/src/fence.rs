//! When is a device done with what a run was given?
//!
//! Tensors of a device are handed to the plain call `Run`, as those of the host are: the library takes each where it says it
//! lies, and brings the others itself, in the order of its own streams. (Binding all of them first would start those copies on
//! a stream of their own; the call that waits for them waits for the thread's current device, which before a run may be another.)
//!
//! A run waits for its own streams before it returns, unless told not to. That is how the library is made, not what it
//! promises; what it offers for "the system that allocated the memory operated on a different stream" is to synchronise bound
//! outputs. So outputs on the device are bound after the run, and waited for: another process may read them the moment it has
//! the answer, and may free all of its memory.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::Arc;

use ort::session::{Session, SharedSessionInner};
use ort::{AsPointer, sys};

use crate::value::{Value, done};

/// Waits for the device of one session. Between waits nothing is bound.
pub struct Fence {
    ptr: NonNull<sys::OrtIoBinding>,
    /// The binding refers to its session, so that must outlive us.
    _session: Arc<SharedSessionInner>,
}

// SAFETY: an OrtIoBinding has no thread affinity, and `&mut` keeps its users apart.
unsafe impl Send for Fence {}

impl Fence {
    /// For runs of this session.
    pub fn new(session: &Session) -> Result<Fence, ort::Error> {
        let mut made = std::ptr::null_mut();
        // SAFETY: the session is alive, and kept so by `_session`; the library makes bindings beside runs, and changes nothing in the session for
        // them; `made` is a place for one pointer.
        done(unsafe { (ort::api().CreateIoBinding)(session.ptr().cast_mut(), &raw mut made) })?;
        let ptr = NonNull::new(made).ok_or_else(|| ort::Error::new("the library made no binding"))?;
        Ok(Fence { ptr, _session: session.inner() })
    }

    /// Returns when the device has done all that was asked of it, for the outputs of a run that has just ended on this thread.
    /// Outputs of a run that failed may still be written until then.
    pub fn wait<'v>(&mut self, outputs: impl Iterator<Item = (&'v CStr, &'v Value<'v>)>) -> Result<(), ort::Error> {
        // However this ends, the library forgets the memory of the request.
        let bound = Bound(self.ptr);
        for (name, value) in outputs {
            // SAFETY: the binding is alive and ours alone; a C string; the value outlives `bound`, which forgets it.
            done(unsafe { (ort::api().BindOutput)(bound.0.as_ptr(), name.as_ptr(), value.as_ptr()) })?;
        }
        // SAFETY: the binding is alive and ours alone.
        done(unsafe { (ort::api().SynchronizeBoundOutputs)(bound.0.as_ptr()) })
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        // SAFETY: made by the library for us and released once, before its session.
        unsafe { (ort::api().ReleaseIoBinding)(self.ptr.as_ptr()) };
    }
}

/// A binding while it has outputs.
struct Bound(NonNull<sys::OrtIoBinding>);

impl Drop for Bound {
    fn drop(&mut self) {
        // SAFETY: the binding is alive and its `Fence` mutably borrowed; the library drops its references to the outputs.
        unsafe { (ort::api().ClearBoundOutputs)(self.0.as_ptr()) };
    }
}
