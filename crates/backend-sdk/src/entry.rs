//! What happens when the server calls a backend?
//!
//! Each function that the server looks up in a library has one here. [`export_backend!`](crate::export_backend) exports them under their names. A
//! panic becomes an error, and does not reach the server.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

use crate::backend::{Backend, Instance, Model};
use crate::batch::Batch;
use crate::context::{BackendContext, InstanceContext, ModelContext};
use crate::error::Error;
use crate::interface as raw;
pub use crate::interface::{Attribute, Backend as RawBackend, Instance as RawInstance, Model as RawModel};
pub use crate::interface::{Request as RawRequest, Returned};

type InstanceOf<B> = <<B as Backend>::Model as Model>::Instance;

/// `TRITONBACKEND_Initialize`.
///
/// # Safety
/// As all functions here: the server calls it, with arguments as the interface says.
pub unsafe fn initialize<B: Backend>(backend: *mut RawBackend) -> Returned {
    returned(|| {
        check_version()?;
        // SAFETY: the server's handle, during its call.
        let made = Box::new(B::initialize(&unsafe { BackendContext::new(backend) })?);
        let state = Box::into_raw(made).cast();
        // SAFETY: as above; the state is kept for the functions below, and ended by `finalize`.
        unsafe { raw::TRITONBACKEND_BackendSetState(backend, state) }.check()
    })
}

/// `TRITONBACKEND_GetBackendAttribute`.
///
/// # Safety
/// As [`initialize`].
pub unsafe fn attribute(attribute: *mut Attribute) -> Returned {
    returned(|| {
        // Tensors are slices of the host's memory.
        // SAFETY: the server's handle, during its call. The list of devices is empty.
        unsafe {
            raw::TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
                attribute,
                raw::KIND_CPU,
                0,
                std::ptr::null(),
                0,
            )
        }
        .check()?;
        // SAFETY: as above. `Model::instance` takes `&self`, so several may be made at a time.
        unsafe { raw::TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attribute, true) }.check()
    })
}

/// `TRITONBACKEND_Finalize`.
///
/// # Safety
/// As [`initialize`].
pub unsafe fn finalize<B: Backend>(backend: *mut RawBackend) -> Returned {
    returned(|| {
        // SAFETY: the server's handle, during its call.
        let state = state(|place| unsafe { raw::TRITONBACKEND_BackendState(backend, place) })?;
        // SAFETY: `initialize` set it, or it is NULL; nothing uses it after the last function of the backend.
        unsafe { end::<B>(state) };
        Ok(())
    })
}

/// `TRITONBACKEND_ModelInitialize`.
///
/// # Safety
/// As [`initialize`].
pub unsafe fn model_initialize<B: Backend>(model: *mut RawModel) -> Returned {
    returned(|| {
        let mut backend = null_mut();
        // SAFETY: the server's handle, during its call.
        unsafe { raw::TRITONBACKEND_ModelBackend(model, &raw mut backend) }.check()?;
        // SAFETY: the server just gave this handle.
        let state = state(|place| unsafe { raw::TRITONBACKEND_BackendState(backend, place) })?;
        // SAFETY: `initialize` of the same `B` set it, and `finalize` comes after all models.
        let found = unsafe { state.cast::<B>().as_ref() };
        let found = found.ok_or_else(|| Error::internal("the backend is not initialized"))?;
        // SAFETY: the server's handle, during its call.
        let made = Box::new(found.load(&unsafe { ModelContext::new(model) })?);
        let state = Box::into_raw(made).cast();
        // SAFETY: as above; the state is ended by `model_finalize`.
        unsafe { raw::TRITONBACKEND_ModelSetState(model, state) }.check()
    })
}

/// `TRITONBACKEND_ModelFinalize`.
///
/// # Safety
/// As [`initialize`].
pub unsafe fn model_finalize<B: Backend>(model: *mut RawModel) -> Returned {
    returned(|| {
        // SAFETY: the server's handle, during its call.
        let state = state(|place| unsafe { raw::TRITONBACKEND_ModelState(model, place) })?;
        // SAFETY: `model_initialize` set it, or it is NULL because that failed; all instances have ended.
        unsafe { end::<B::Model>(state) };
        Ok(())
    })
}

/// `TRITONBACKEND_ModelInstanceInitialize`.
///
/// # Safety
/// As [`initialize`].
pub unsafe fn instance_initialize<B: Backend>(instance: *mut RawInstance) -> Returned {
    returned(|| {
        let mut model = null_mut();
        // SAFETY: the server's handle, during its call.
        unsafe { raw::TRITONBACKEND_ModelInstanceModel(instance, &raw mut model) }.check()?;
        // SAFETY: the server just gave this handle.
        let state = state(|place| unsafe { raw::TRITONBACKEND_ModelState(model, place) })?;
        // SAFETY: `model_initialize` of the same `B` set it, and `model_finalize` comes after all instances.
        let found = unsafe { state.cast::<B::Model>().as_ref() };
        let found = found.ok_or_else(|| Error::internal("the model is not initialized"))?;
        // SAFETY: the server's handle, during its call.
        let made = found.instance(&unsafe { InstanceContext::new(instance) })?;
        let state = Box::into_raw(Box::new(Mutex::new(made))).cast();
        // SAFETY: as above; the state is ended by `instance_finalize`.
        unsafe { raw::TRITONBACKEND_ModelInstanceSetState(instance, state) }.check()
    })
}

/// `TRITONBACKEND_ModelInstanceFinalize`.
///
/// # Safety
/// As [`initialize`].
pub unsafe fn instance_finalize<B: Backend>(instance: *mut RawInstance) -> Returned {
    returned(|| {
        // SAFETY: the server's handle, during its call.
        let state = state(|place| unsafe { raw::TRITONBACKEND_ModelInstanceState(instance, place) })?;
        // SAFETY: `instance_initialize` set it, or it is NULL because that failed; no batch runs any more.
        unsafe { end::<Mutex<InstanceOf<B>>>(state) };
        Ok(())
    })
}

/// `TRITONBACKEND_ModelInstanceExecute`. An error is returned only if nothing was done with the requests.
///
/// # Safety
/// As [`initialize`].
pub unsafe fn execute<B: Backend>(instance: *mut RawInstance, requests: *mut *mut RawRequest, count: u32) -> Returned {
    returned(|| {
        // SAFETY: the server's handle, during its call.
        let state = state(|place| unsafe { raw::TRITONBACKEND_ModelInstanceState(instance, place) })?;
        // SAFETY: `instance_initialize` of the same `B` set it, and `instance_finalize` comes after all batches.
        let found = unsafe { state.cast::<Mutex<InstanceOf<B>>>().as_ref() };
        let found = found.ok_or_else(|| Error::internal("the instance is not initialized"))?;
        // A server runs one batch at a time. The lock guarantees it. The instance is used further after a panic.
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: by the interface `count` requests lie there during the call.
        let given = (0..count as usize).map(|index| unsafe { requests.wrapping_add(index).read() });
        // SAFETY: what the server passed to this call; its requests are the backend's from now on.
        let batch = unsafe { Batch::new(instance, given) };
        // The panic is caught here. While it unwinds, requests without an answer are answered with an error.
        let run = catch_unwind(AssertUnwindSafe(|| found.run(batch)));
        if let Err(panic) = run {
            crate::log::log(crate::Level::Error, &format!("the backend panicked: {}", panic_text(&*panic)));
        }
        Ok(())
    })
}

/// NULL for success, else an error. A panic must not unwind into the server's frames.
fn returned(call: impl FnOnce() -> Result<(), Error>) -> Returned {
    let error = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return Returned::SUCCESS,
        Ok(Err(error)) => error,
        Err(panic) => Error::internal(format!("the backend panicked: {}", panic_text(&*panic))),
    };
    error.into_returned()
}

/// The text of a panic.
fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it does not say why")
}

fn check_version() -> Result<(), Error> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both places outlive the call.
    unsafe { raw::TRITONBACKEND_ApiVersion(&raw mut major, &raw mut minor) }.check()?;
    if major == raw::API_MAJOR && minor >= raw::API_MINOR {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "triton backend API version does not support this backend: the server has {major}.{minor}, the backend needs {}.{}",
        raw::API_MAJOR,
        raw::API_MINOR
    )))
}

/// The state that a function of the server returns. NULL if there is none.
fn state(getter: impl FnOnce(*mut *mut c_void) -> Returned) -> Result<*mut c_void, Error> {
    let mut found = null_mut();
    getter(&raw mut found).check()?;
    Ok(found)
}

/// Drops a state.
///
/// # Safety
/// `state` is NULL or a `Box<T>` that was made into a pointer, and which nobody uses any more.
unsafe fn end<T>(state: *mut c_void) {
    if !state.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(state.cast::<T>()) });
    }
}

/// Exports the functions that a server looks up, for the backend of this type. Use it once in a crate of the type `cdylib`.
#[macro_export]
macro_rules! export_backend {
    ($backend:ty) => {
        const _: () = {
            use $crate::entry::{Attribute, RawBackend, RawInstance, RawModel, RawRequest, Returned};

            #[unsafe(no_mangle)]
            extern "C" fn TRITONBACKEND_Initialize(backend: *mut RawBackend) -> Returned {
                // SAFETY: the server calls it, as the interface says. So it is with those below.
                unsafe { $crate::entry::initialize::<$backend>(backend) }
            }

            #[unsafe(no_mangle)]
            extern "C" fn TRITONBACKEND_GetBackendAttribute(_: *mut RawBackend, attribute: *mut Attribute) -> Returned {
                // SAFETY: see above.
                unsafe { $crate::entry::attribute(attribute) }
            }

            #[unsafe(no_mangle)]
            extern "C" fn TRITONBACKEND_Finalize(backend: *mut RawBackend) -> Returned {
                // SAFETY: see above.
                unsafe { $crate::entry::finalize::<$backend>(backend) }
            }

            #[unsafe(no_mangle)]
            extern "C" fn TRITONBACKEND_ModelInitialize(model: *mut RawModel) -> Returned {
                // SAFETY: see above.
                unsafe { $crate::entry::model_initialize::<$backend>(model) }
            }

            #[unsafe(no_mangle)]
            extern "C" fn TRITONBACKEND_ModelFinalize(model: *mut RawModel) -> Returned {
                // SAFETY: see above.
                unsafe { $crate::entry::model_finalize::<$backend>(model) }
            }

            #[unsafe(no_mangle)]
            extern "C" fn TRITONBACKEND_ModelInstanceInitialize(instance: *mut RawInstance) -> Returned {
                // SAFETY: see above.
                unsafe { $crate::entry::instance_initialize::<$backend>(instance) }
            }

            #[unsafe(no_mangle)]
            extern "C" fn TRITONBACKEND_ModelInstanceFinalize(instance: *mut RawInstance) -> Returned {
                // SAFETY: see above.
                unsafe { $crate::entry::instance_finalize::<$backend>(instance) }
            }

            #[unsafe(no_mangle)]
            extern "C" fn TRITONBACKEND_ModelInstanceExecute(
                instance: *mut RawInstance,
                requests: *mut *mut RawRequest,
                count: u32,
            ) -> Returned {
                // SAFETY: see above.
                unsafe { $crate::entry::execute::<$backend>(instance, requests, count) }
            }
        };
    };
}
