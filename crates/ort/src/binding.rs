//! How does a session run whose tensors lie on several sides of a bus?
//!
//! ```text
//!   bind inputs ─► wait for those that were brought to the device ─► run ─► wait for the device ─► take what was made
//! ```
//! The first wait is for the library's own copies of host inputs, which binding starts. Inputs on the device are there already:
//! our copies are waited for, and a client has to wait for its own before it asks. The second wait is what lets another process
//! read an output the moment it has the answer: a run alone promises no more than that the library's next step sees it.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::Arc;

use ort::memory::{Allocator, MemoryInfo};
use ort::session::{Session, SharedSessionInner};
use ort::{AsPointer, sys};

use crate::value::{Value, done};

/// Inputs and outputs of one session by name, empty between runs.
pub struct Binding {
    ptr: NonNull<sys::OrtIoBinding>,
    /// What the library bound, it released with its session; so that must outlive us.
    _session: Arc<SharedSessionInner>,
}

// SAFETY: an OrtIoBinding has no thread affinity, and `&mut` keeps its users apart.
unsafe impl Send for Binding {}

impl Binding {
    /// For runs of this session.
    pub fn new(session: &mut Session) -> Result<Binding, ort::Error> {
        let mut made = std::ptr::null_mut();
        // SAFETY: the session is alive, and kept so by `_session`; `made` is a place for one pointer.
        done(unsafe { (ort::api().CreateIoBinding)(session.ptr_mut(), &raw mut made) })?;
        let ptr = NonNull::new(made).ok_or_else(|| ort::Error::new("the library made no binding"))?;
        Ok(Binding { ptr, _session: session.inner() })
    }

    /// Runs `session`, which is the one this binding was made for. Outputs with a value are computed into it; the library makes
    /// the others in memory of `host`, and they are returned. When this returns, nothing runs on the device for us any more.
    pub fn run(
        &mut self,
        session: &mut Session,
        options: *const sys::OrtRunOptions,
        inputs: &[(&CStr, &Value<'_>)],
        outputs: &[(&CStr, Option<&Value<'_>>)],
        host: &MemoryInfo<'_>,
    ) -> Result<Vec<Option<Value<'static>>>, ort::Error> {
        // However this ends, the library forgets the memory of the request.
        let bound = Bound(self.ptr);
        for (name, value) in inputs {
            // SAFETY: the binding is alive and ours alone; a C string; the value outlives `bound`, which forgets it.
            done(unsafe { (ort::api().BindInput)(bound.ptr(), name.as_ptr(), value.as_ptr()) })?;
        }
        for (name, place) in outputs {
            match place {
                // SAFETY: as for inputs.
                Some(value) => done(unsafe { (ort::api().BindOutput)(bound.ptr(), name.as_ptr(), value.as_ptr()) })?,
                // SAFETY: as for inputs; the library copies the memory info.
                None => done(unsafe { (ort::api().BindOutputToDevice)(bound.ptr(), name.as_ptr(), host.ptr()) })?,
            }
        }
        // SAFETY: the binding is alive and ours alone.
        done(unsafe { (ort::api().SynchronizeBoundInputs)(bound.ptr()) })?;
        // SAFETY: session and options are alive, and `&mut` makes this the only run of the session; the binding holds values
        // that live until the end of this function.
        let ran = done(unsafe { (ort::api().RunWithBinding)(session.ptr_mut(), options, bound.ptr()) });
        // Also after a run that failed: some of it may still write to the client's memory.
        // SAFETY: the binding is alive and ours alone.
        let waited = done(unsafe { (ort::api().SynchronizeBoundOutputs)(bound.ptr()) });
        ran.and(waited)?;
        let made = bound.values(outputs.len())?;
        Ok(made.into_iter().zip(outputs).map(|(made, (_, place))| place.is_none().then_some(made)).collect())
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        // SAFETY: made by the library for us and released once, before its session.
        unsafe { (ort::api().ReleaseIoBinding)(self.ptr.as_ptr()) };
    }
}

/// A binding while it has values.
struct Bound(NonNull<sys::OrtIoBinding>);

impl Bound {
    fn ptr(&self) -> *mut sys::OrtIoBinding {
        self.0.as_ptr()
    }

    /// All outputs, in the order in which they were bound.
    fn values(&self, count: usize) -> Result<Vec<Value<'static>>, ort::Error> {
        let allocator = Allocator::default();
        let (mut array, mut made) = (std::ptr::null_mut::<*mut sys::OrtValue>(), 0);
        let get = ort::api().GetBoundOutputValues;
        // SAFETY: the binding and the allocator are alive; `array` is a place for one pointer and `made` for one count.
        done(unsafe { get(self.ptr(), allocator.ptr().cast_mut(), &raw mut array, &raw mut made) })?;
        if array.is_null() {
            return if count == 0 { Ok(Vec::new()) } else { Err(ort::Error::new("the library gave no outputs")) };
        }
        let values: Vec<Result<Value<'static>, ort::Error>> = (0..made)
            .map(|at| {
                // SAFETY: the library made an array of `made` handles, and `at` is below that.
                let place = unsafe { array.add(at) };
                // SAFETY: one of them, as just said. Each is a reference of its own and read once.
                Value::from_made(unsafe { place.read() })
            })
            .collect();
        // SAFETY: the array came from this allocator and is not used again; its handles were moved out.
        unsafe { allocator.free(array) };
        if made != count {
            return Err(ort::Error::new(format!("the library gave {made} outputs, {count} were bound")));
        }
        values.into_iter().collect()
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // SAFETY: the binding is alive and ours alone. Inputs: the library drops its references.
        unsafe { (ort::api().ClearBoundInputs)(self.ptr()) };
        // SAFETY: as above, for outputs.
        unsafe { (ort::api().ClearBoundOutputs)(self.ptr()) };
    }
}
