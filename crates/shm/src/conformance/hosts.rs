//! Over which kinds of memory does the suite run?

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use nerite_memory::{Extent, Reason};

use super::heap::Heap;
use crate::{Options, OwnedRegion, Registry};

/// A client with its own objects, and the server's registry of them.
pub(super) trait Host {
    fn new(options: Options) -> Self;
    fn registry(&self) -> &Registry;
    /// Creates an object and returns its key.
    fn make(&mut self, byte_size: usize) -> String;
    /// Writes as the client does, without the server.
    fn client_writes(&self, key: &str, at: usize, bytes: &[u8]);
    /// Removes the object's memory from `at` on, as a client that shrinks it.
    fn lose(&mut self, key: &str, at: usize);
    /// Restores the memory.
    fn restore(&mut self, key: &str, byte_size: usize);
    /// The number of mappings of the server, counted outside of the registry. `None` if they cannot be counted.
    fn mappings(&self) -> Option<usize>;
}

pub(super) struct HeapHost {
    pub(super) heap: Heap,
    pub(super) bases: HashMap<String, NonNull<u8>>,
    registry: Registry,
}

pub(super) struct PosixHost {
    regions: HashMap<String, OwnedRegion>,
    registry: Registry,
}

impl Host for HeapHost {
    fn new(options: Options) -> HeapHost {
        let heap = Heap::default();
        let registry = Registry::with_source(options, Box::new(heap.clone()));
        HeapHost { heap, bases: HashMap::new(), registry }
    }
    fn registry(&self) -> &Registry {
        &self.registry
    }
    fn make(&mut self, byte_size: usize) -> String {
        let key = format!("/{}", self.bases.len());
        let base = self.heap.make(&key, byte_size);
        self.bases.insert(key.clone(), base);
        key
    }
    fn client_writes(&self, key: &str, at: usize, bytes: &[u8]) {
        // SAFETY: the tests write within the objects they made, and the heap holds those as long as `self` lives.
        let to = unsafe { self.bases[key].as_ptr().add(at) };
        // SAFETY: as above, and a slice is readable.
        unsafe { to.copy_from(bytes.as_ptr(), bytes.len()) };
    }
    fn lose(&mut self, key: &str, at: usize) {
        self.heap.lose(key, at);
    }
    fn restore(&mut self, key: &str, _byte_size: usize) {
        self.heap.restore(key);
    }
    fn mappings(&self) -> Option<usize> {
        Some(self.heap.mappings())
    }
}

impl Host for PosixHost {
    fn new(options: Options) -> PosixHost {
        PosixHost { regions: HashMap::new(), registry: Registry::new(options) }
    }
    fn registry(&self) -> &Registry {
        &self.registry
    }
    fn make(&mut self, byte_size: usize) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let key = format!("/nerite-suite-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        self.regions.insert(key.clone(), OwnedRegion::create(&key, byte_size).unwrap());
        key
    }
    fn client_writes(&self, key: &str, at: usize, bytes: &[u8]) {
        let region = &self.regions[key];
        region.slot(Extent::new(at, bytes.len(), region.byte_size()).unwrap()).write(0, bytes, Reason::Model).unwrap();
    }
    fn lose(&mut self, key: &str, at: usize) {
        let file = std::fs::File::options().write(true).open(format!("/dev/shm{key}")).unwrap();
        file.set_len(at as u64).unwrap();
    }
    fn restore(&mut self, key: &str, byte_size: usize) {
        self.lose(key, byte_size);
    }
    fn mappings(&self) -> Option<usize> {
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        let ours = |line: &&str| self.regions.keys().any(|key| line.ends_with(&format!("/dev/shm{key}")));
        // The client's own regions are mappings of this process too. The kernel may merge neighbouring mappings into one line, so the number is exact
        // only if nothing is mapped.
        Some(maps.lines().filter(ours).count().saturating_sub(self.regions.len()))
    }
}
