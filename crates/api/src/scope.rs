//! Whose names does a request mean?
//!
//! ```text
//!   HTTP, gRPC:  lease names (whoever knows one may use it), then the regions of the client's user (see `owners`)
//!   a session:   its own leases, leases of others by name, its own regions, then those of its user
//! ```
//!
//! What a session registers is its own: nobody else can name it, list it or unregister it, and it goes with the session.

use std::sync::{Arc, OnceLock};

use nerite_memory::{Buffer, Slot};
use nerite_request::limits::TensorsMax;
use nerite_request::report::SystemRegionReport;
use nerite_request::{Cancel, InferRequest, RegionRef, Response, SessionRef, Status};
use nerite_shm::limits::{MAPPED_BYTES_MAX, REGIONS_MAX, WATCHED_MAX};
use nerite_shm::{
    Account, BorrowedLease, LEASES_MAX, Lease, LeaseError, LeaseLimits, LeaseName, Pools, Registry, ShmError,
};

use crate::access::Category;
use crate::admit::Regions;
use crate::calls::check_name;
use crate::errors::{of_lease, of_shm};
use crate::places::OutputLease;
use crate::prepared::{CallError, PreparedRequest};
use crate::{Api, access};

/// Regions one session may have registered.
pub const REGIONS_PER_SESSION_MAX: usize = 64;
/// Sessions that may be open at one time.
pub const SESSIONS_MAX: usize = 256;

const _: () = assert!(
    REGIONS_MAX + LEASES_MAX + SESSIONS_MAX * REGIONS_PER_SESSION_MAX < 65_530 - 4096,
    "Linux gives a process 65,530 mappings, and the allocator needs some"
);
const _: () = assert!(REGIONS_MAX + LEASES_MAX + SESSIONS_MAX * REGIONS_PER_SESSION_MAX <= WATCHED_MAX);

/// One session's names and memory. Dropping it ends them; requests in flight keep what they use.
pub struct Scope {
    api: Api,
    account: Arc<Account>,
    /// Most sessions use leases and never register anything.
    regions: OnceLock<Registry>,
}

impl Api {
    /// A scope for a new session.
    pub fn open_scope(&self) -> Scope {
        Scope { api: self.clone(), account: self.0.pools.open(), regions: OnceLock::new() }
    }

    /// Whether a session may make a call of `category`. Where HTTP or gRPC wants a header for it, the session must have
    /// brought one of those headers: there is no second door.
    pub fn allow_session<'h>(
        &self,
        category: Category,
        header: impl Fn(&str) -> Option<&'h [u8]>,
    ) -> Result<(), Status> {
        category.begins();
        access::check_any(&self.0.options.restrictions, category, header)
    }

    /// What the server lends to sessions.
    pub fn pools(&self) -> &Arc<Pools> {
        &self.0.pools
    }

    /// The names that HTTP and gRPC requests mean.
    pub(crate) fn global(&self) -> Global<'_> {
        Global { api: self }
    }
}

impl Scope {
    /// What one session and all of them may borrow.
    pub fn limits(&self) -> LeaseLimits {
        self.api.0.pools.limits()
    }

    /// At least `byte_size` bytes to share.
    pub fn borrow(&self, byte_size: u64) -> Result<BorrowedLease, Status> {
        self.api.check_running()?;
        self.account.borrow(byte_size).map_err(of_lease)
    }

    /// A lease that the session has, with its descriptor if that was not sent yet: for those that a response named.
    pub fn fetch(&self, name: &str) -> Result<BorrowedLease, Status> {
        self.account.fetch(name).map_err(of_lease)
    }

    /// Whether the session has all of these leases.
    pub fn check_leases(&self, names: &[String]) -> Result<(), Status> {
        let missing = names.iter().any(|name| self.account.find(name).is_none());
        if missing { Err(of_lease(LeaseError::Unknown)) } else { Ok(()) }
    }

    /// What outputs of any protocol name to be placed in leases of this session; `None` if it has no key.
    pub fn key(&self) -> Option<SessionRef> {
        self.account.key().map(|key| SessionRef { key, tag: 0 })
    }

    /// Nobody waits for answers to requests of this tag: what was placed for them comes back but for the leases in `kept`, and
    /// nothing more is placed.
    pub fn abandon(&self, tag: u64, kept: &[String]) {
        self.account.abandon(tag, kept);
    }

    /// Takes a lease back. Requests that use it go on.
    pub fn give_back(&self, name: &str) -> Result<(), Status> {
        self.account.give_back(name).map_err(of_lease)
    }

    /// Names of returned leases that are no more, each told once.
    pub fn take_forgotten(&self) -> Vec<LeaseName> {
        self.account.take_forgotten()
    }

    /// Leases the session has, lent and idle, and their bytes.
    pub fn used(&self) -> (u64, u64) {
        self.account.used()
    }

    /// Maps a POSIX object and gives it a name in this session alone.
    pub fn register_system(&self, name: &str, key: &str, offset: u64, byte_size: u64) -> Result<(), Status> {
        self.api.check_running()?;
        self.api.check_client_shm()?;
        check_name(name)?;
        let rights = self.api.rights(key);
        self.own_regions().register_system_as(&rights, name, key, offset, byte_size).map_err(of_shm)
    }

    /// Unregisters one of the session's regions, or (empty name) all. Those of others are not touched.
    pub fn unregister_system(&self, name: &str) -> Result<(), Status> {
        self.api.check_client_shm()?;
        match (self.regions.get(), name) {
            (None, _) => Ok(()),
            (Some(regions), "") => regions.unregister_all_system().map_err(of_shm),
            (Some(regions), name) => regions.unregister_system(name).map_err(of_shm),
        }
    }

    /// One of the session's regions, or (empty name) all, by name.
    pub fn system_status(&self, name: &str) -> Result<Vec<SystemRegionReport>, Status> {
        let wanted = Some(name).filter(|name| !name.is_empty());
        let found = self.own_regions().system_status(wanted).map_err(of_shm)?;
        Ok(found.into_iter().map(crate::calls::system_report).collect())
    }

    /// As [`Api::tensors_max`].
    pub fn tensors_max(&self, model: &str, version: &str) -> TensorsMax {
        self.api.tensors_max(model, version)
    }

    /// As [`Api::must_wait_for`].
    pub fn must_wait_for(&self, model: &str) -> bool {
        self.api.must_wait_for(model)
    }

    /// As [`Api::want_model`].
    pub async fn want_model(&self, model: &str) -> Result<(), Status> {
        self.api.want_model(model).await
    }

    /// One request of the session. `leased` names outputs that are to be written to leases of our choice; each response
    /// comes with those that were. Otherwise as [`Api::infer_stream`].
    pub fn infer(
        &self,
        mut infer_request: InferRequest,
        leased: Vec<String>,
        cancel: Cancel,
        sink: impl FnMut(Response, Vec<OutputLease>) + Send + 'static,
    ) -> Result<(), Status> {
        let _until_it_is_counted = self.api.take_on()?;
        let admission = self.api.admit(&infer_request.model, &infer_request.version)?;
        self.api.trace_packet(&mut infer_request);
        self.api.submit(admission, infer_request, self, Some((&self.account, leased)), cancel, sink)
    }

    /// Checks a request of the session once, to be asked for by [`Scope::call`]. `leased` is that of [`Scope::infer`].
    pub fn prepare(&self, infer_request: InferRequest, leased: Vec<String>) -> Result<PreparedRequest, Status> {
        let admission = self.api.admit(&infer_request.model, &infer_request.version)?;
        PreparedRequest::of(infer_request, leased, &admission, self)
    }

    /// One request that was prepared in this session. Otherwise as [`Scope::infer`].
    pub fn call(
        &self,
        prepared: &PreparedRequest,
        cancel: Cancel,
        sink: impl FnMut(Response, Vec<OutputLease>) + Send + 'static,
    ) -> Result<(), CallError> {
        let _until_it_is_counted = self.api.take_on()?;
        prepared.submit(&self.api, self, &self.account, cancel, sink)
    }

    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    /// The session's regions, if it ever registered any.
    pub(crate) fn registry(&self) -> Option<&Registry> {
        self.regions.get()
    }

    fn own_regions(&self) -> &Registry {
        let limits = || nerite_shm::Options {
            allow_client_shm: self.api.check_client_shm().is_ok(),
            regions_max: REGIONS_PER_SESSION_MAX,
            mapped_bytes_max: MAPPED_BYTES_MAX / SESSIONS_MAX as u64,
        };
        self.regions.get_or_init(|| Registry::new(limits()).with_gpu(self.api.0.regions.gpu().cloned()))
    }

    /// The session's own memory of that name; `None` if it has none, whether or not others do.
    fn own<T>(
        &self,
        region: &RegionRef,
        of_lease: impl FnOnce(&Arc<Lease>, &RegionRef) -> Result<T, Status>,
        of_region: impl FnOnce(&Registry, &RegionRef) -> Result<T, ShmError>,
    ) -> Option<Result<T, Status>> {
        if let Some(lease) = self.account.find(&region.name) {
            return Some(of_lease(&lease, region));
        }
        match of_region(self.regions.get()?, region) {
            Err(ShmError::RegionUnknown { .. }) => None,
            found => Some(found.map_err(of_shm)),
        }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        // Requests in flight may hold the account as well; what they place from now on, nobody would return.
        self.account.close();
    }
}

impl std::fmt::Debug for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Scope({:?})", self.account)
    }
}

impl Regions for Scope {
    fn buffer(&self, region: &RegionRef) -> Result<Buffer, Status> {
        let of_region =
            |regions: &Registry, r: &RegionRef| Ok(regions.locate(&r.name, r.offset, r.byte_size)?.into_buffer());
        self.own(region, lease_buffer, of_region).unwrap_or_else(|| self.api.global().buffer(region))
    }

    fn slot(&self, region: &RegionRef) -> Result<Slot, Status> {
        let of_region =
            |regions: &Registry, r: &RegionRef| Ok(regions.locate(&r.name, r.offset, r.byte_size)?.into_slot());
        self.own(region, lease_slot, of_region).unwrap_or_else(|| self.api.global().slot(region))
    }
}

/// The names that HTTP and gRPC requests of one client mean.
pub(crate) struct Global<'a> {
    api: &'a Api,
}

impl Regions for Global<'_> {
    fn buffer(&self, region: &RegionRef) -> Result<Buffer, Status> {
        let RegionRef { name, offset, byte_size } = region;
        match self.api.0.pools.find(name) {
            Some(lease) => lease_buffer(&lease, region),
            None => self.api.in_regions(|regions| Ok(regions.locate(name, *offset, *byte_size)?.into_buffer())),
        }
    }

    fn slot(&self, region: &RegionRef) -> Result<Slot, Status> {
        let RegionRef { name, offset, byte_size } = region;
        match self.api.0.pools.find(name) {
            Some(lease) => lease_slot(&lease, region),
            None => self.api.in_regions(|regions| Ok(regions.locate(name, *offset, *byte_size)?.into_slot())),
        }
    }
}

fn lease_buffer(lease: &Arc<Lease>, region: &RegionRef) -> Result<Buffer, Status> {
    Ok(lease.buffer(lease.locate(region.offset, region.byte_size).map_err(of_shm)?))
}

fn lease_slot(lease: &Arc<Lease>, region: &RegionRef) -> Result<Slot, Status> {
    Ok(lease.slot(lease.locate(region.offset, region.byte_size).map_err(of_shm)?))
}
