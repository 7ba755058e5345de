//! Where are the responses to a backend's own requests written?

use std::ptr::NonNull;
use std::sync::{Arc, PoisonError};

use nerite_locks::Mutex;
use nerite_memory::{Access, MemoryOwner, Place, Slot};
use nerite_request::Status;

use super::callbacks::{self, AllocateFn, DescribeFn, Kept, Memory, QueryFn, ReleaseFn, StartFn};
use super::object;
use crate::fault::within;
use crate::table::Handle;

/// `TRITONSERVER_ResponseAllocator`: a backend's functions that allocate memory for outputs and release it.
pub struct Allocator {
    allocate: AllocateFn<Allocator>,
    release: ReleaseFn<Allocator>,
    start: Option<StartFn<Allocator>>,
    query: Mutex<Option<QueryFn<Allocator>>>,
    describe: Mutex<Option<DescribeFn<Allocator>>>,
}

object!(Allocator, 15, "response allocator");

/// An allocator, as one request uses it.
#[derive(Clone)]
pub struct Allocating {
    /// The allocator.
    pub allocator: Arc<Allocator>,
    /// Its handle.
    pub handle: Handle<Allocator>,
    /// The address that the backend gets at each call.
    pub userp: Kept,
    /// The backend's name, for errors.
    pub owner: Arc<str>,
}

/// Memory that an allocator gave. It is released once, when nothing refers to it any more.
pub struct Allocated {
    /// The address and size.
    pub memory: Memory,
    by: Allocating,
}

impl Allocator {
    /// An allocator with these functions. `start` is called once for each response, before memory is allocated for its
    /// outputs.
    pub fn new(
        allocate: AllocateFn<Allocator>,
        release: ReleaseFn<Allocator>,
        start: Option<StartFn<Allocator>>,
    ) -> Allocator {
        Allocator { allocate, release, start, query: Mutex::default(), describe: Mutex::default() }
    }

    /// Sets the function that says in which memory outputs will lie.
    pub fn set_query(&self, query: Option<QueryFn<Allocator>>) {
        *self.query.lock().unwrap_or_else(PoisonError::into_inner) = query;
    }

    /// Sets the function that describes memory.
    pub fn set_describe(&self, describe: Option<DescribeFn<Allocator>>) {
        *self.describe.lock().unwrap_or_else(PoisonError::into_inner) = describe;
    }
}

impl Allocating {
    /// Call this before memory is allocated for the first output of a response.
    pub fn start(&self) -> Result<(), Status> {
        let Some(start) = self.allocator.start else { return Ok(()) };
        within(&self.owner, || callbacks::start(start, self.handle, self.userp))
    }

    /// Allocates memory for an output of this many bytes. The backend chooses the kind of memory, and may give none for
    /// no bytes.
    pub fn allocate(&self, output: &str, bytes: usize, preferred: Place) -> Result<Arc<Allocated>, Status> {
        let (kind, id) = super::memory_of(preferred);
        let wish = (bytes, kind, id);
        let memory = within(&self.owner, || {
            callbacks::allocate(self.allocator.allocate, self.handle, output, wish, self.userp)
        })?;
        // From here on it is released when it is dropped.
        let allocated = Arc::new(Allocated { memory, by: self.clone() });
        if bytes > 0 && memory.base.0.is_null() {
            return Err(Status::internal(format!(
                "backend '{}' gave no memory for output '{output}' of {bytes} bytes",
                self.owner
            )));
        }
        if bytes > 0 && memory.kind > 1 {
            return Err(Status::unsupported(format!(
                "backend '{}' gave memory of type {} for output '{output}'; responses to requests of compiled backends lie in the host's \
                 memory (type 0 or 1) in this version of nerite",
                self.owner, memory.kind
            )));
        }
        self.describe(output, &allocated)?;
        Ok(allocated)
    }

    /// The kind of memory that the backend would allocate for an output, if that is the host's; `None` if it does not
    /// say.
    pub fn likely_place(&self, output: &str) -> Option<Place> {
        let query = (*self.allocator.query.lock().unwrap_or_else(PoisonError::into_inner))?;
        let said = within(&self.owner, || callbacks::query(query, self.handle, output, (0, 0), self.userp));
        match said {
            Ok((1, _)) => Some(Place::Pinned),
            Ok(_) => Some(Place::Host),
            Err(_) => None,
        }
    }

    /// Lets the backend describe its memory, if it has a function for that, as Triton does. The server does not use the description.
    fn describe(&self, output: &str, allocated: &Allocated) -> Result<(), Status> {
        let describe = *self.allocator.describe.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(describe) = describe else { return Ok(()) };
        let attributes = super::BufferAttributes::new(Place::Host, allocated.memory.bytes, None);
        let status_of = |fault: crate::fault::Fault| fault.into_status("TRITONSERVER_ServerInferAsync");
        let attributes = Handle::to(Arc::new(attributes)).map_err(status_of)?;
        let own = (self.userp, allocated.memory.userp);
        let described = within(&self.owner, || callbacks::describe(describe, self.handle, output, attributes, own));
        // It was made above. It is missing only if the backend deleted an object that is not its own.
        drop(attributes.take());
        described
    }
}

impl Allocated {
    /// A slot that keeps the memory. `None` if there are no bytes.
    pub fn slot(self: &Arc<Self>) -> Option<Slot> {
        let base = NonNull::new(self.memory.base.0.cast::<u8>()).filter(|_| self.memory.bytes > 0)?;
        let place = if self.memory.kind == 1 { Place::Pinned } else { Place::Host };
        let keep: Arc<dyn MemoryOwner> = Arc::clone(self) as _;
        // SAFETY: by the contract of `TRITONSERVER_ResponseAllocatorAllocFn_t` `bytes` bytes that may be written lie at `base` until the
        // release function is called for them, which `Allocated` does when it is dropped; the slot keeps it. The backend may look at them
        // meanwhile, so they count as shared, and no slice of them is made.
        Some(unsafe { Slot::from_raw(base, self.memory.bytes, place, Access::Shared, keep) })
    }
}

impl MemoryOwner for Allocated {}

impl Drop for Allocated {
    fn drop(&mut self) {
        let Allocating { allocator, handle, owner, .. } = &self.by;
        // As in Triton, NULL is not released.
        if self.memory.base.0.is_null() {
            return;
        }
        if let Err(status) = within(owner, || callbacks::release(allocator.release, *handle, &self.memory)) {
            log::error!("backend '{owner}': the release function of its response allocator: {status}");
        }
    }
}
