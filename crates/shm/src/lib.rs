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
//! A [`Registry`] keeps one strong reference to a [`Region`] while the region is registered. Each Buffer and Slot of a request keeps another. The
//! names table for lookups has weak references. So `unregister` only drops the reference of the registration. Until the last reference is dropped and the
//! memory is unmapped, requests in flight continue, new requests may still find the region, and status lists it. No flag and no callback are needed. A new
//! registration under the name replaces the weak reference at once, and the old mapping ends with its last request.
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
//! A client can shrink its object after registration, and in a full `/dev/shm` the object may have no memory. Checking the size before each use would
//! not help: the size can change after the check, and the check would need a descriptor for each of up to 10,000 regions. Instead a guard handles the SIGBUS
//! of an access to missing memory: the access reads zeros, and the region is marked as lost. `fault()` is called before every request is answered, and the
//! request fails if it used a lost region. A lost region takes no more requests. A new registration under its name replaces it. The first registration
//! installs the signal handler, which forwards all other faults to the previously installed handler.
//!
//! On a host with a GPU ([`Gpu`]) the same registry takes CUDA regions: allocations of another process, opened by their IPC handles, with the same names
//! and the same lifetime. Their bytes are on a device, and their owner copies them ([`nerite_memory::DeviceCopier`]).

mod cuda;
mod deferred;
mod descriptors;
mod error;
mod freeing;
mod gpu;
mod guard;
mod inspect;
mod lease;
pub mod limits;
mod loss;
mod mapped;
mod mapped_counts;
mod names;
mod objects;
mod open_object;
mod own;
mod peer;
mod phrasebook;
mod posix;
mod record;
mod refuse_descriptors;
mod region;
mod registrant;
mod registries;
mod registry;
mod rights;
mod source;
mod sync;
mod window;

#[cfg(test)]
mod conformance;

pub use cuda::{CUDA_HANDLE_BYTES, CudaHandle};
pub use deferred::keep_until_freed;
pub use descriptors::{close_all_on_exec, leave_descriptors};
pub use error::{ErrorKind, ShmError};
pub use gpu::Gpu;
pub use inspect::RegionState;
pub use lease::{
    Account, AdoptError, AdoptedLease, BorrowedLease, ClassCounts, LEASE_BYTES_MIN, LEASES_MAX, LEASES_PER_SESSION_MAX,
    Lease, LeaseCounts, LeaseError, LeaseErrorKind, LeaseLimits, LeaseName, LeaseState, Pools, random_bits,
};
pub use loss::{Loss, ObjectNow};
pub use mapped::SharedMapping;
pub use mapped_counts::Counts;
pub use objects::Objects;
pub use own::{OwnError, OwnedRegion};
pub use peer::{PeerCredentials, peer_credentials};
pub use record::{CudaStatus, Kind, Origin, Record, SystemStatus};
pub use refuse_descriptors::refuse_descriptors;
pub use region::{Attached, Located, Region};
pub use registrant::{Payer, Registrant};
pub use registries::Registries;
pub use registry::{Options, Registry};
pub use rights::Rights;
