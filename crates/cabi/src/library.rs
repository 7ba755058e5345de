//! How is a backend's library loaded and called?

use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use libloading::os::unix::{Library as Object, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};
use nerite_locks::Mutex;
use nerite_request::Status;

use crate::calls;
use crate::fault::within;
use crate::image::image;
use crate::needed::triton_names;
use crate::objects::{BackendAttribute, BackendObject, ErrorObject, InstanceObject, ModelObject, RequestObject};
use crate::table::Handle;

/// The name of Triton's library that most backends need.
const USUAL_NAME: &str = "libtritonserver.so";

type Returned = Handle<ErrorObject>;
type OfBackend = unsafe extern "C-unwind" fn(Handle<BackendObject>) -> Returned;
type OfAttribute = unsafe extern "C-unwind" fn(Handle<BackendObject>, Handle<BackendAttribute>) -> Returned;
type OfModel = unsafe extern "C-unwind" fn(Handle<ModelObject>) -> Returned;
type OfInstance = unsafe extern "C-unwind" fn(Handle<InstanceObject>) -> Returned;
type Execute = unsafe extern "C-unwind" fn(Handle<InstanceObject>, *mut Handle<RequestObject>, u32) -> Returned;

/// A loaded library of a backend, and its functions.
pub struct Library {
    owner: Arc<str>,
    initialize: Option<OfBackend>,
    finalize: Option<OfBackend>,
    attribute: Option<OfAttribute>,
    model_initialize: Option<OfModel>,
    model_finalize: Option<OfModel>,
    instance_initialize: Option<OfInstance>,
    instance_finalize: Option<OfInstance>,
    instance_ready: Option<OfInstance>,
    execute: Execute,
    // It keeps the code of the functions mapped.
    _object: Object,
}

impl Library {
    /// Opens the library of the backend called `owner`.
    pub fn open(owner: &Arc<str>, path: &Path) -> Result<Library, Status> {
        let failed = |cause: String| {
            Status::internal(format!("unable to load shared library of backend '{owner}', {}: {cause}", path.display()))
        };
        let object = open_object(path).map_err(failed)?;
        let execute = symbol::<Execute>(&object, "TRITONBACKEND_ModelInstanceExecute")
            .ok_or_else(|| failed("it has no function TRITONBACKEND_ModelInstanceExecute".to_owned()))?;
        Ok(Library {
            owner: Arc::clone(owner),
            initialize: symbol(&object, "TRITONBACKEND_Initialize"),
            finalize: symbol(&object, "TRITONBACKEND_Finalize"),
            attribute: symbol(&object, "TRITONBACKEND_GetBackendAttribute"),
            model_initialize: symbol(&object, "TRITONBACKEND_ModelInitialize"),
            model_finalize: symbol(&object, "TRITONBACKEND_ModelFinalize"),
            instance_initialize: symbol(&object, "TRITONBACKEND_ModelInstanceInitialize"),
            instance_finalize: symbol(&object, "TRITONBACKEND_ModelInstanceFinalize"),
            instance_ready: symbol(&object, "TRITONBACKEND_ModelInstanceReady"),
            execute,
            _object: object,
        })
    }

    /// `TRITONBACKEND_Initialize`.
    pub fn initialize(&self, backend: Handle<BackendObject>) -> Result<(), Status> {
        // SAFETY: the symbol of this name has this signature by the interface, and `_object` keeps its code.
        self.call(|| self.initialize.map(|call| unsafe { call(backend) }))
    }

    /// `TRITONBACKEND_Finalize`.
    pub fn finalize(&self, backend: Handle<BackendObject>) -> Result<(), Status> {
        // SAFETY: as in `initialize`.
        self.call(|| self.finalize.map(|call| unsafe { call(backend) }))
    }

    /// `TRITONBACKEND_GetBackendAttribute`.
    pub fn attribute(&self, backend: Handle<BackendObject>, attribute: Handle<BackendAttribute>) -> Result<(), Status> {
        // SAFETY: as in `initialize`.
        self.call(|| self.attribute.map(|call| unsafe { call(backend, attribute) }))
    }

    /// `TRITONBACKEND_ModelInitialize`.
    pub fn model_initialize(&self, model: Handle<ModelObject>) -> Result<(), Status> {
        // SAFETY: as in `initialize`.
        self.call(|| self.model_initialize.map(|call| unsafe { call(model) }))
    }

    /// `TRITONBACKEND_ModelFinalize`.
    pub fn model_finalize(&self, model: Handle<ModelObject>) -> Result<(), Status> {
        // SAFETY: as in `initialize`.
        self.call(|| self.model_finalize.map(|call| unsafe { call(model) }))
    }

    /// `TRITONBACKEND_ModelInstanceInitialize`.
    pub fn instance_initialize(&self, instance: Handle<InstanceObject>) -> Result<(), Status> {
        // SAFETY: as in `initialize`.
        self.call(|| self.instance_initialize.map(|call| unsafe { call(instance) }))
    }

    /// `TRITONBACKEND_ModelInstanceFinalize`.
    pub fn instance_finalize(&self, instance: Handle<InstanceObject>) -> Result<(), Status> {
        // SAFETY: as in `initialize`.
        self.call(|| self.instance_finalize.map(|call| unsafe { call(instance) }))
    }

    /// Whether it has `TRITONBACKEND_ModelInstanceReady`.
    pub fn has_readiness_function(&self) -> bool {
        self.instance_ready.is_some()
    }

    /// `TRITONBACKEND_ModelInstanceReady`. An error says that the instance cannot take requests.
    pub fn instance_ready(&self, instance: Handle<InstanceObject>) -> Result<(), Status> {
        // SAFETY: as in `initialize`.
        self.call(|| self.instance_ready.map(|call| unsafe { call(instance) }))
    }

    /// `TRITONBACKEND_ModelInstanceExecute`. The backend may read and write the list during the call.
    pub fn execute(
        &self,
        instance: Handle<InstanceObject>,
        requests: &mut [Handle<RequestObject>],
    ) -> Result<(), Status> {
        let (first, count) = (requests.as_mut_ptr(), requests.len() as u32);
        // SAFETY: as in `initialize`; `first` points to `count` handles that nobody else reads or writes during the call.
        self.call(|| Some(unsafe { (self.execute)(instance, first, count) }))
    }

    /// Calls the backend. Reads and deletes the error that it returns. A function that the library lacks counts as a success.
    fn call(&self, call: impl FnOnce() -> Option<Returned>) -> Result<(), Status> {
        let returned = within(&self.owner, call).unwrap_or_default();
        if returned.is_null() {
            return Ok(());
        }
        match returned.take() {
            Ok(error) => Err(error.status()),
            Err(fault) => Err(fault.of(&self.owner).into_status("the error that it returned")),
        }
    }
}

/// Opens a library that uses the interface. The libraries that replace Triton's own for it are loaded before.
fn open_object(path: &Path) -> Result<Object, String> {
    let names = triton_names(path).map_err(|cause| cause.to_string())?;
    stand_in(USUAL_NAME).map_err(|cause| cause.to_string())?;
    for name in names {
        stand_in(&name).map_err(|cause| cause.to_string())?;
    }
    // SAFETY: the initialisers of the library run here. The operator put it where backends are searched for, or named it in a model's configuration,
    // and so trusts it (docs/threats.md); nothing that a client sends names a file that is opened.
    unsafe { Object::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|refused| reason(&refused))
}

/// The function of this name. `None` if there is none.
fn symbol<F: Copy>(object: &Object, name: &str) -> Option<F> {
    // SAFETY: `F` is the type that the interface gives to the function of this name. A library that has another under it breaks the interface
    // that its file's name claims.
    let found = unsafe { object.get::<F>(name.as_bytes()) }.ok()?;
    Some(*found)
}

/// A library that replaces Triton's own.
struct StandIn {
    _object: Object,
    /// Kept open, because its path contains the number of the descriptor. If the number were used again, the loader would take the path for this
    /// object.
    _file: Option<File>,
}

/// Makes sure that a library of this name, with all functions of the interface, is loaded. It is never unloaded.
fn stand_in(name: &str) -> io::Result<()> {
    static LOADED: Mutex<Option<HashMap<String, StandIn>>> = Mutex::new(None);
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let loaded = loaded.get_or_insert_default();
    if loaded.contains_key(name) {
        return Ok(());
    }
    let symbols: Vec<(&str, u64)> = calls::all().map(|export| (export.name, export.address.addr() as u64)).collect();
    let bytes = image(name, &symbols);
    let made = match through_memory(&bytes) {
        Ok(made) => made,
        // A system may forbid executable code in memory files.
        Err(refused) => through_a_file(name, &bytes)
            .map_err(|cause| io::Error::other(format!("{name} cannot be made: {refused}; nor from a file: {cause}")))?,
    };
    loaded.insert(name.to_owned(), made);
    Ok(())
}

/// Loads it from a memory file.
fn through_memory(bytes: &[u8]) -> io::Result<StandIn> {
    // SAFETY: the name is a text that ends with a zero, and lives as long as the process.
    let descriptor = unsafe { libc::memfd_create(c"nerite-tritonserver".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel gave this descriptor to us a moment ago, and nobody else has it.
    let mut file = unsafe { File::from_raw_fd(descriptor) };
    file.write_all(bytes)?;
    let object = open_global(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))?;
    Ok(StandIn { _object: object, _file: Some(file) })
}

/// Loads it from a temporary file that only this user can read.
fn through_a_file(name: &str, bytes: &[u8]) -> io::Result<StandIn> {
    let path = std::env::temp_dir().join(format!("nerite-{}-{name}", std::process::id()));
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
    let opened = file.write_all(bytes).and_then(|()| open_global(&path));
    std::fs::remove_file(&path)?;
    Ok(StandIn { _object: opened?, _file: None })
}

fn open_global(path: &Path) -> io::Result<Object> {
    // SAFETY: the object is `image`'s: it has no initialisers, and its functions are jumps to ours, which live as long as the process.
    // They are global, so that backends that name no library find them as well.
    unsafe { Object::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.map_err(|refused| io::Error::other(reason(&refused)))
}

/// The loader's error text, which the error type does not display.
fn reason(refused: &libloading::Error) -> String {
    refused.source().map_or_else(|| refused.to_string(), ToString::to_string)
}
