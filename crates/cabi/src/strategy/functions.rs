//! How are the functions of a batching strategy called?

use std::ffi::c_void;
use std::path::Path;
use std::sync::Arc;

use libloading::os::unix::Library as Object;
use nerite_request::Status;

use super::NO_BATCH;
use crate::fault::{Fault, within};
use crate::library::{open_object, symbol};
use crate::objects::{ErrorObject, Kept, ModelObject, RequestObject};
use crate::table::Handle;

type Returned = Handle<ErrorObject>;
type BatcherInitialize = unsafe extern "C-unwind" fn(*mut *mut c_void, Handle<ModelObject>) -> Returned;
type BatcherFinalize = unsafe extern "C-unwind" fn(*mut c_void) -> Returned;
type BatchInitialize = unsafe extern "C-unwind" fn(*const c_void, *mut *mut c_void) -> Returned;
type Include = unsafe extern "C-unwind" fn(Handle<RequestObject>, *mut c_void, *mut bool) -> Returned;
type BatchFinalize = unsafe extern "C-unwind" fn(*mut c_void) -> Returned;

/// The five functions of a library.
pub struct Functions {
    owner: Arc<str>,
    batcher_initialize: BatcherInitialize,
    batcher_finalize: BatcherFinalize,
    batch_initialize: BatchInitialize,
    include: Include,
    batch_finalize: BatchFinalize,
    // It keeps the code of the functions mapped.
    _object: Object,
}

impl Functions {
    /// The functions of the library at `path`. `None` if it has none of them.
    pub fn open(path: &Path, model: &str) -> Result<Option<Functions>, Status> {
        let object = open_object(path).map_err(|cause| {
            Status::internal(format!(
                "unable to load shared library of the batching strategy {}: {cause}",
                path.display()
            ))
        })?;
        let batcher_initialize = symbol(&object, "TRITONBACKEND_ModelBatcherInitialize");
        let batcher_finalize = symbol(&object, "TRITONBACKEND_ModelBatcherFinalize");
        let batch_initialize = symbol(&object, "TRITONBACKEND_ModelBatchInitialize");
        let include = symbol(&object, "TRITONBACKEND_ModelBatchIncludeRequest");
        let batch_finalize = symbol(&object, "TRITONBACKEND_ModelBatchFinalize");
        let found = [
            batcher_initialize.is_some(),
            batcher_finalize.is_some(),
            batch_initialize.is_some(),
            include.is_some(),
            batch_finalize.is_some(),
        ];
        if !found.contains(&true) {
            return Ok(None);
        }
        let (
            Some(batcher_initialize),
            Some(batcher_finalize),
            Some(batch_initialize),
            Some(include),
            Some(batch_finalize),
        ) = (batcher_initialize, batcher_finalize, batch_initialize, include, batch_finalize)
        else {
            return Err(Status::invalid(format!(
                "{} does not define all required custom batching functions for model {model}",
                path.display()
            )));
        };
        let owner = Arc::from(format!("batching strategy of {model}"));
        Ok(Some(Functions {
            owner,
            batcher_initialize,
            batcher_finalize,
            batch_initialize,
            include,
            batch_finalize,
            _object: object,
        }))
    }

    /// `TRITONBACKEND_ModelBatcherInitialize`.
    pub fn batcher_initialize(&self, model: Handle<ModelObject>, batcher: &mut Kept) -> Result<(), Status> {
        // SAFETY: the symbol of this name has this signature by the interface, `_object` keeps its code, and the place is a variable of the caller.
        self.call(|| unsafe { (self.batcher_initialize)(&raw mut batcher.0, model) })
    }

    /// `TRITONBACKEND_ModelBatcherFinalize`.
    pub fn batcher_finalize(&self, batcher: Kept) -> Result<(), Status> {
        // SAFETY: as in `batcher_initialize`; the address is the library's own, and is not used after this.
        self.call(|| unsafe { (self.batcher_finalize)(batcher.0) })
    }

    /// `TRITONBACKEND_ModelBatchInitialize`.
    pub fn batch_initialize(&self, batcher: Kept) -> Result<Kept, Status> {
        let mut userp = NO_BATCH;
        // SAFETY: as in `batcher_initialize`; the address is what the library made, and the place is a variable of this call.
        self.call(|| unsafe { (self.batch_initialize)(batcher.0.cast_const(), &raw mut userp) })?;
        Ok(Kept(userp))
    }

    /// `TRITONBACKEND_ModelBatchIncludeRequest`.
    pub fn includes(&self, request: Handle<RequestObject>, userp: Kept) -> Result<bool, Status> {
        let mut includes = 0u8;
        // SAFETY: as in `batcher_initialize`; the address is what the library made for this batch. The place is a variable of this call, of the size
        // of a C bool; as a number it may hold any byte.
        self.call(|| unsafe { (self.include)(request, userp.0, (&raw mut includes).cast()) })?;
        Ok(includes != 0)
    }

    /// `TRITONBACKEND_ModelBatchFinalize`.
    pub fn batch_finalize(&self, userp: Kept) -> Result<(), Status> {
        // SAFETY: as in `includes`; the address is not used after this.
        self.call(|| unsafe { (self.batch_finalize)(userp.0) })
    }

    /// Calls the library. Reads and deletes the error that it returns.
    fn call(&self, call: impl FnOnce() -> Returned) -> Result<(), Status> {
        let returned = within(&self.owner, call);
        if returned.is_null() {
            return Ok(());
        }
        let status_of = |fault: Fault| fault.of(&self.owner).into_status("the error that it returned");
        Err(returned.take().map_err(status_of)?.status())
    }
}
