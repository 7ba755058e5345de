//! When has a device finished with the tensors of a run?
//!
//! Tensors of a device are passed to the plain call `Run`, like those of the host. The library uses each tensor in the memory that its memory
//! information names, or copies it itself, in the order of its own streams. (Binding all of them first would start those copies on a stream of their
//! own. The call that waits for them waits for the thread's current device, which may be another one before a run.)
//!
//! A run waits for its own streams before it returns, unless an option says otherwise. The library behaves so, but does not promise it. For the case
//! that "the system that allocated the memory operated on a different stream" it offers a call that synchronises bound outputs. So outputs on the
//! device are bound after the run and synchronised, because another process may read them as soon as it has the answer, and may free all of its
//! memory.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::Arc;

use ort::session::{Session, SharedSessionInner};
use ort::{AsPointer, sys};

use crate::value::{Value, done};

/// Waits for the device of one session. Nothing is bound between waits.
pub struct Fence {
    ptr: NonNull<sys::OrtIoBinding>,
    /// The binding refers to its session, so the session must outlive it.
    _session: Arc<SharedSessionInner>,
}

// SAFETY: an OrtIoBinding has no thread affinity, and `&mut` keeps its users apart.
unsafe impl Send for Fence {}

impl Fence {
    /// A fence for runs of this session.
    pub fn new(session: &Session) -> Result<Fence, ort::Error> {
        let mut made = std::ptr::null_mut();
        // SAFETY: the session is alive, and kept so by `_session`; the library makes bindings beside runs, and changes nothing in the session for
        // them; `made` is a place for one pointer.
        done(unsafe { (ort::api().CreateIoBinding)(session.ptr().cast_mut(), &raw mut made) })?;
        let ptr = NonNull::new(made).ok_or_else(|| ort::Error::new("the library made no binding"))?;
        Ok(Fence { ptr, _session: session.inner() })
    }

    /// Returns when the device has finished all work for the outputs of a run that has just ended on this thread. Until
    /// then the outputs may still be written, even if the run failed.
    pub fn wait<'v>(&mut self, outputs: impl Iterator<Item = (&'v CStr, &'v Value<'v>)>) -> Result<(), ort::Error> {
        // When this is dropped, the library drops its references to the memory of the request, whatever the result is.
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
