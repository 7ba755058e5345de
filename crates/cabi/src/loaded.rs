//! How is a backend initialised and finalised?

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, PoisonError};

use nerite_config::proto::ModelInstanceGroup;
use nerite_config::proto::model_instance_group::Kind;
use nerite_locks::Mutex;
use nerite_request::Status;

use crate::crash::Named;
use crate::fault::Fault;
use crate::library::Library;
use crate::objects::{BackendAttribute, BackendObject, BackendParts};
use crate::table::Handle;

/// A loaded backend. Dropping it calls `Finalize` and closes the library.
pub(crate) struct Loaded {
    pub library: Library,
    pub object: Arc<BackendObject>,
    pub handle: Handle<BackendObject>,
    /// Whether its instances may be made in parallel.
    pub is_parallel: bool,
    /// The instance groups that it prefers, the best first.
    pub preferred: Vec<ModelInstanceGroup>,
    /// Held while an instance is made, if they may not be made in parallel.
    pub making: Mutex<()>,
    /// Lets an abort on one of the backend's own threads name it.
    _named: Named,
    // Dropped last, when the library is closed.
    _present: Present,
}

/// Whether a backend is loaded: from before its `Initialize` until its library is closed.
#[derive(Default)]
pub(crate) struct Presence {
    is_over: Mutex<bool>,
    over: Condvar,
}

/// Marks the backend as loaded, until it is dropped.
struct Present(Arc<Presence>);

impl Loaded {
    /// Opens the library at `path` and initialises the backend.
    pub fn open(name: &str, path: &Path, config: String, presence: &Arc<Presence>) -> Result<Loaded, Status> {
        let present = Present(Arc::clone(presence));
        let directory = path.parent().map(|directory| directory.display().to_string()).unwrap_or_default();
        let status_of = |fault: Fault| fault.into_status("TRITONBACKEND_Initialize");
        let object = BackendObject::new(BackendParts { name, directory: &directory, config }).map_err(status_of)?;
        let object = Arc::new(object);
        let library = Library::open(&object.owner, path)?;
        let handle = Handle::to(Arc::clone(&object)).map_err(status_of)?;
        // It is also dropped after a failure, which calls `Finalize`, as in Triton.
        let (is_parallel, preferred, making) = (false, Vec::new(), Mutex::default());
        let named = Named::new(name);
        let mut loaded =
            Loaded { library, object, handle, is_parallel, preferred, making, _named: named, _present: present };
        let initialized = loaded.library.initialize(handle).and_then(|()| query_attribute(&loaded.library, handle));
        loaded.object.is_initializing.store(false, Ordering::Release);
        (loaded.is_parallel, loaded.preferred) = initialized.inspect_err(|status| {
            log::error!("backend '{name}' ({}) cannot be used: {status}", path.display());
        })?;
        log::info!("backend '{name}' is loaded from {}", path.display());
        Ok(loaded)
    }

    /// Whether the backend reads and writes the host's memory only: it prefers instance groups on the host, and no others.
    pub fn is_host_only(&self) -> bool {
        !self.preferred.is_empty() && self.preferred.iter().all(|group| group.kind() == Kind::Cpu)
    }
}

/// Whether its instances may be made in parallel, and the instance groups that it prefers.
fn query_attribute(
    library: &Library,
    backend: Handle<BackendObject>,
) -> Result<(bool, Vec<ModelInstanceGroup>), Status> {
    let attribute = Arc::new(BackendAttribute::default());
    let handle =
        Handle::to(Arc::clone(&attribute)).map_err(|fault| fault.into_status("TRITONBACKEND_GetBackendAttribute"))?;
    let returned = library.attribute(backend, handle);
    drop(handle.take());
    returned.map(|()| (attribute.is_parallel(), attribute.preferred()))
}

impl Presence {
    /// Whether its library is closed.
    pub fn is_over(&self) -> bool {
        *self.is_over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until its library is closed.
    pub fn wait(&self) {
        let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.over.wait_while(is_over, |is_over| !*is_over).unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        *self.0.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.over.notify_all();
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if let Err(status) = self.library.finalize(self.handle) {
            log::error!("backend '{}': TRITONBACKEND_Finalize: {status}", self.object.owner);
        }
        drop(self.handle.take());
    }
}
