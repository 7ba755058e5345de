//! How does another process's memory become a Buffer?
//!
//! ```text
//!  client ── "region a is object /x" ──►  register ──► shm_open, fstat, bounds, mmap ──► Region ─┐
//!                                                                                                │ one Arc: the
//!                                         Names:  name ──► Weak<Region>   (snapshots, no lock)   │ registration
//!                                                              │ upgrade
//!  request ── "64 bytes at 128 of a" ──►  locate ──────────────┴──► Located ──► Buffer | Slot<Vacant>   (an Arc each)
//! ```
//!
//! A [`Registry`] keeps one strong reference to a [`Region`] for as long as the region is registered; everything a request
//! makes of it keeps another. The names table that lookups read holds weak ones. So `unregister` only drops the
//! registration's reference: requests in flight go on, new ones may still join, status lists the region, until the last
//! reference goes and with it the mapping. No flag says so and no callback is needed. A new registration under the name
//! replaces the weak reference at once and the old mapping ends with its last request.
//!
//! ```
//! use nerite_memory::{Extent, Reason};
//! use nerite_shm::{Options, OwnedRegion, Registry};
//!
//! let key = format!("/nerite-example-{}", std::process::id());
//! let mine = OwnedRegion::create(&key, 4096)?; // the client's side
//! mine.slot(Extent::new(0, 5, 4096)?).write(0, b"hello", Reason::Model)?;
//!
//! let registry = Registry::new(Options::default()); // the server's side
//! registry.register_system("a", &key, 0, 4096)?;
//! let input = registry.locate("a", 0, 5)?.into_buffer();
//! registry.unregister_system("a")?;
//! assert_eq!(input.to_private(Reason::Model).private_bytes(), Some(&b"hello"[..]));
//! assert_eq!(registry.counts().mapped, 1);
//! drop(input);
//! assert_eq!(registry.counts().mapped, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A client can shrink its object after registration, or leave it without memory in a full `/dev/shm`. No descriptor is
//! kept (10,000 regions would be 10,000 descriptors) and a size read before use would be stale at use anyway. Instead a
//! guard meets the SIGBUS of an access that finds no memory: the access goes on with zeros, the region is lost, and
//! whoever used it is told by `fault()`, which every request asks before it is answered. A lost region takes no more
//! requests; a new registration under its name replaces it. The handler is installed by the first registration and leaves
//! every other fault to the handler before it.
//!
//! On a host with a GPU ([`Gpu`]) the same registry takes CUDA regions: another process's allocation, opened by its IPC handle,
//! under the same names and with the same life. Their bytes are on a device, and whoever keeps them carries them
//! ([`nerite_memory::Carrier`]).

mod cuda;
mod descriptors;
mod error;
mod gpu;
mod guard;
mod inspect;
mod lease;
pub mod limits;
mod loss;
mod mapped;
mod names;
mod objects;
mod own;
mod phrasebook;
mod posix;
mod record;
mod region;
mod registries;
mod registry;
mod rights;
mod source;
mod sync;
mod tally;
mod window;

#[cfg(test)]
mod conformance;

pub use cuda::{CUDA_HANDLE_BYTES, CudaHandle};
pub use descriptors::close_all_on_exec;
pub use error::{ErrorKind, ShmError};
pub use gpu::Gpu;
pub use inspect::RegionState;
pub use lease::{
    Account, AdoptError, AdoptedLease, BorrowedLease, ClassCounts, LEASE_BYTES_MIN, LEASES_MAX, LEASES_PER_SESSION_MAX,
    Lease, LeaseCounts, LeaseError, LeaseErrorKind, LeaseLimits, LeaseName, LeaseState, Pools, random_bits,
};
pub use loss::{Loss, ObjectNow};
pub use mapped::SharedMapping;
pub use objects::Objects;
pub use own::{OwnError, OwnedRegion};
pub use record::{CudaStatus, Kind, Origin, Record, SystemStatus};
pub use region::{Located, Region};
pub use registries::Registries;
pub use registry::{Options, Registry};
pub use rights::Rights;
pub use tally::Counts;
