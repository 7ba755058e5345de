//! Which leases of the server, lent or returned, has this process mapped?

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use nerite_shm::AdoptedLease;

/// The session's mappings by lease name. When the server lends a lease again, it sends no descriptor.
#[derive(Default)]
pub(super) struct Mapped(Mutex<HashMap<String, AdoptedLease>>);

impl Mapped {
    /// The memory of a lease that was just lent. The error says why it cannot be used.
    pub(super) fn find(&self, name: &str, descriptor: Option<OwnedFd>, size: usize) -> Result<AdoptedLease, String> {
        let mut mapped = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(descriptor) = descriptor else {
            return mapped.get(name).cloned().ok_or_else(|| "a lease this session never had".to_owned());
        };
        let memory = AdoptedLease::adopt(descriptor, size).map_err(|error| error.to_string())?;
        mapped.insert(name.to_owned(), memory.clone());
        Ok(memory)
    }

    /// Whether the lease is mapped here.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(name)
    }

    /// Unmaps returned leases that the server will not lend again.
    pub(super) fn forget(&self, names: &[String]) {
        let mut mapped = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<_> = names.iter().filter_map(|name| mapped.remove(name)).collect();
        drop(mapped);
        drop(gone);
    }
}
