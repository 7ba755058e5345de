//! How much memory do the sessions of a model keep?

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nerite_request::report::MemoryUsage;

/// The bytes that all sessions of one model version keep on the host: what ONNX Runtime got from the server's allocator while each was loaded. These
/// are its constants, in the layouts that its kernels read.
#[derive(Clone, Debug, Default)]
pub struct HeldBytes(Arc<AtomicUsize>);

/// The part of one session. It counts until it is dropped.
#[derive(Debug)]
pub struct SessionBytes {
    all: HeldBytes,
    bytes: usize,
}

impl HeldBytes {
    /// Counts a session that keeps this many bytes.
    pub fn add(&self, bytes: usize) -> SessionBytes {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        SessionBytes { all: self.clone(), bytes }
    }

    /// The sum, for the statistics; nothing if it is 0. What sessions on a GPU keep is not known, so it is not included.
    pub fn report(&self) -> Vec<MemoryUsage> {
        MemoryUsage::of_host(self.0.load(Ordering::Relaxed) as u64)
    }
}

impl Drop for SessionBytes {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
