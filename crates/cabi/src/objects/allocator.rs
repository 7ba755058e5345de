//! Where do responses go to requests that a backend makes?

use std::ptr::NonNull;
use std::sync::{Arc, PoisonError};

use nerite_locks::Mutex;
use nerite_memory::{Access, Keep, Place, Slot};
use nerite_request::Status;

use super::callbacks::{self, AllocateFn, DescribeFn, Kept, Memory, QueryFn, ReleaseFn, StartFn};
use super::object;
use crate::fault::within;
use crate::table::Handle;

/// `TRITONSERVER_ResponseAllocator`: functions of a backend's that give memory for outputs, and take it back.
pub struct Allocator {
    allocate: AllocateFn<Allocator>,
    release: ReleaseFn<Allocator>,
    start: Option<StartFn<Allocator>>,
    query: Mutex<Option<QueryFn<Allocator>>>,
    describe: Mutex<Option<DescribeFn<Allocator>>>,
}

object!(Allocator, 15, "response allocator");

/// An allocator as one request uses it.
#[derive(Clone)]
pub struct Allocating {
    /// It.
    pub allocator: Arc<Allocator>,
    /// Its handle.
    pub handle: Handle<Allocator>,
    /// What the backend wants back at each call.
    pub userp: Kept,
    /// The backend's name, for errors.
    pub owner: Arc<str>,
}

/// Memory that an allocator gave. It is given back once, when nothing refers to it any more.
pub struct Allocated {
    /// Where it is.
    pub memory: Memory,
    by: Allocating,
}

impl Allocator {
    /// One of these functions; `start` is called once for each response, before its outputs are placed.
    pub fn new(
        allocate: AllocateFn<Allocator>,
        release: ReleaseFn<Allocator>,
        start: Option<StartFn<Allocator>>,
    ) -> Allocator {
        Allocator { allocate, release, start, query: Mutex::default(), describe: Mutex::default() }
    }

    /// Has this function asked where outputs will lie.
    pub fn set_query(&self, query: Option<QueryFn<Allocator>>) {
        *self.query.lock().unwrap_or_else(PoisonError::into_inner) = query;
    }

    /// Has this function asked what memory is.
    pub fn set_describe(&self, describe: Option<DescribeFn<Allocator>>) {
        *self.describe.lock().unwrap_or_else(PoisonError::into_inner) = describe;
    }
}

impl Allocating {
    /// The first output of a response is about to be placed.
    pub fn start(&self) -> Result<(), Status> {
        let Some(start) = self.allocator.start else { return Ok(()) };
        within(&self.owner, || callbacks::start(start, self.handle, self.userp))
    }

    /// Memory for an output of so many bytes; the backend chooses which, and none for no bytes.
    pub fn allocate(&self, output: &str, bytes: usize, preferred: Place) -> Result<Arc<Allocated>, Status> {
        let (kind, id) = super::memory_of(preferred);
        let wish = (bytes, kind, id);
        let memory = within(&self.owner, || {
            callbacks::allocate(self.allocator.allocate, self.handle, output, wish, self.userp)
        })?;
        // From here on it goes back by itself.
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

    /// Where the backend would place an output, where that is the host's memory; `None` if it does not say.
    pub fn likely_place(&self, output: &str) -> Option<Place> {
        let query = (*self.allocator.query.lock().unwrap_or_else(PoisonError::into_inner))?;
        let said = within(&self.owner, || callbacks::query(query, self.handle, output, (0, 0), self.userp));
        match said {
            Ok((1, _)) => Some(Place::Pinned),
            Ok(_) => Some(Place::Host),
            Err(_) => None,
        }
    }

    /// Where the backend tells what its memory is, it is asked, as in Triton. The server needs nothing of it.
    fn describe(&self, output: &str, allocated: &Allocated) -> Result<(), Status> {
        let describe = *self.allocator.describe.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(describe) = describe else { return Ok(()) };
        let attributes = super::BufferAttributes::new(Place::Host, allocated.memory.bytes, None);
        let told = |fault: crate::fault::Fault| fault.told("TRITONSERVER_ServerInferAsync");
        let attributes = Handle::to(Arc::new(attributes)).map_err(told)?;
        let own = (self.userp, allocated.memory.userp);
        let described = within(&self.owner, || callbacks::describe(describe, self.handle, output, attributes, own));
        // It was made above; only a backend that deletes what is not its own ended it before.
        drop(attributes.take());
        described
    }
}

impl Allocated {
    /// A place to write to, which keeps the memory. `None` where there are no bytes.
    pub fn slot(self: &Arc<Self>) -> Option<Slot> {
        let base = NonNull::new(self.memory.base.0.cast::<u8>()).filter(|_| self.memory.bytes > 0)?;
        let place = if self.memory.kind == 1 { Place::Pinned } else { Place::Host };
        let keep: Arc<dyn Keep> = Arc::clone(self) as _;
        // SAFETY: by the contract of `TRITONSERVER_ResponseAllocatorAllocFn_t` `bytes` bytes that may be written lie at `base` until the
        // release function is called for them, which `Allocated` does when it is dropped; the slot keeps it. The backend may look at them
        // meanwhile, so they count as shared, and no slice of them is made.
        Some(unsafe { Slot::from_raw(base, self.memory.bytes, place, Access::Shared, keep) })
    }
}

impl Keep for Allocated {}

impl Drop for Allocated {
    fn drop(&mut self) {
        let Allocating { allocator, handle, owner, .. } = &self.by;
        // As in Triton, what is no memory is not given back.
        if self.memory.base.0.is_null() {
            return;
        }
        if let Err(status) = within(owner, || callbacks::release(allocator.release, *handle, &self.memory)) {
            log::error!("backend '{owner}': the release function of its response allocator: {status}");
        }
    }
}
