//! Which names of memory can a request use?
//!
//! ```text
//!   HTTP, gRPC:  lease names (a client that knows one may use it), then the regions of the client's user (see `owners`)
//!   a session:   its own leases, leases of others by name, its own regions, then those of its user
//! ```
//!
//! A region that a session registers belongs to that session. Others cannot name, list or unregister the region, and it is removed with the session.

use std::sync::{Arc, OnceLock};

use nerite_memory::{Buffer, Slot};
use nerite_request::report::SystemRegionReport;
use nerite_request::{Cancel, InferRequest, Numbered, Recycled, RegionRef, Response, SessionRef, Status, TraceContext};
use nerite_shm::limits::{REGIONS_MAX, WATCHED_MAX};
use nerite_shm::{
    Account, BorrowedLease, LEASES_MAX, Lease, LeaseError, LeaseLimits, LeaseName, Pools, Registry, ShmError,
};

use crate::access::{Category, Refused};
use crate::admission::Admission;
use crate::admit::Regions;
use crate::aside::{on_lease_worker, on_mapping_worker};
use crate::audit::quoted;
use crate::caller::FrontEnd;
use crate::calls::check_name;
use crate::errors::{of_lease, of_shm};
use crate::places::OutputLease;
use crate::prepared::{CallError, PreparedRequest};
use crate::{Api, codes};

/// The most regions that one session may register.
pub const REGIONS_PER_SESSION_MAX: usize = 64;
/// The most open sessions.
pub const SESSIONS_MAX: usize = 256;

const _: () = assert!(
    REGIONS_MAX + LEASES_MAX + SESSIONS_MAX * REGIONS_PER_SESSION_MAX < 65_530 - 4096,
    "Linux gives a process 65,530 mappings, and the allocator needs some"
);
const _: () = assert!(REGIONS_MAX + LEASES_MAX + SESSIONS_MAX * REGIONS_PER_SESSION_MAX <= WATCHED_MAX);

/// The names and memory of one session. Dropping it ends them. Requests in flight keep the memory that they use.
pub struct Scope {
    api: Api,
    account: Arc<Account>,
    /// Made at the first registration. Most sessions only use leases.
    regions: OnceLock<Registry>,
}

impl Api {
    /// A scope for a new session.
    pub fn open_scope(&self) -> Scope {
        Scope { api: self.clone(), account: self.inner.pools.open(), regions: OnceLock::new() }
    }

    /// Whether a session may make a call of all these categories, which may change something. If HTTP or gRPC requires a header for one of them, the
    /// session must have sent one of these headers. If the server has tokens, it must have sent a token. So the access rules hold for sessions too.
    pub fn allow_session<'h>(
        &self,
        categories: &[Category],
        changes: bool,
        header: impl Fn(&str) -> Option<&'h [u8]>,
    ) -> Result<(), Refused> {
        let caller = self.enter(FrontEnd::Session, categories, changes, String::new, header)?;
        // The record of an earlier call may still be set, from before the log was made less verbose.
        if caller.is_some() || self.client.session_caller.load().is_some() {
            self.client.session_caller.store(caller);
        }
        Ok(())
    }

    /// The same client, for the call that its session makes now. A call that waits keeps this value while the session makes other calls.
    pub fn in_session_call(&self) -> Api {
        self.caller().map_or_else(|| self.clone(), |caller| self.with_caller(caller))
    }

    /// Continues the call of [`Api::in_session_call`]: the session makes it now.
    pub fn resume_session_call(&self) {
        if self.caller.is_some() || self.client.session_caller.load().is_some() {
            self.client.session_caller.store(self.caller.clone());
        }
    }

    /// Notes why one of the inferences of a session's packet was not begun.
    pub fn note_session_refusal(&self, status: &Status) {
        self.note_session_code(codes::grpc_status(status.code));
    }

    /// As [`Api::note_session_refusal`], with the number that the client gets.
    pub fn note_session_code(&self, code: u32) {
        if self.logs_requests()
            && let Some(line) = self.client.session_caller.load_full().as_ref().and_then(|caller| caller.line.as_ref())
        {
            line.note_status(code);
        }
    }

    /// Notes that a call which [`Api::allow_session`] allowed was carried out. `None` if the call was only begun: its answer has the outcome later.
    pub fn end_session_call(&self, outcome: Option<Result<(), &Status>>) {
        if self.logs_requests()
            && let Some(line) = self.client.session_caller.swap(None).as_ref().and_then(|caller| caller.line.as_ref())
            && let Some(outcome) = outcome
        {
            line.note_status(outcome.err().map_or(0, |status| codes::grpc_status(status.code)));
        }
    }

    /// The leases that the server lends to sessions.
    pub fn pools(&self) -> &Arc<Pools> {
        &self.inner.pools
    }

    /// The names that HTTP and gRPC requests can use.
    pub(crate) fn global(&self) -> Global<'_> {
        Global { api: self }
    }
}

impl Scope {
    /// The most bytes of leases for one session and for all sessions.
    pub fn limits(&self) -> LeaseLimits {
        self.api.inner.pools.limits()
    }

    /// Lends at least `byte_size` bytes.
    pub fn borrow(&self, byte_size: u64) -> Result<BorrowedLease, Status> {
        self.api.check_running()?;
        self.account.borrow(byte_size).map_err(of_lease)
    }

    /// As [`Scope::borrow`], for a thread that serves connections. Unmapping idle leases and calling a GPU's driver happen on a thread that serves no
    /// connections.
    pub async fn borrow_aside(self: &Arc<Scope>, byte_size: u64) -> Result<BorrowedLease, Status> {
        self.api.check_running()?;
        if let Some(borrowed) = self.account.borrow_at_once(byte_size).map_err(of_lease)? {
            return Ok(borrowed);
        }
        let scope = Arc::clone(self);
        let borrow = move || scope.borrow(byte_size);
        if self.api.inner.pools.has_gpu() { on_mapping_worker(borrow).await? } else { on_lease_worker(borrow).await? }
    }

    /// A lease of the session, for example one that a response named, with its descriptor if that was not sent yet.
    pub fn fetch(&self, name: &str) -> Result<BorrowedLease, Status> {
        self.account.fetch(name).map_err(of_lease)
    }

    /// Whether the session has all of these leases.
    pub fn check_leases(&self, names: &[String]) -> Result<(), Status> {
        let missing = names.iter().any(|name| self.account.find(name).is_none());
        if missing { Err(of_lease(LeaseError::Unknown)) } else { Ok(()) }
    }

    /// The key by which outputs of any protocol are placed in leases of this session. `None` if it has no key.
    pub fn key(&self) -> Option<SessionRef> {
        self.account.key().map(|key| SessionRef { key, tag: 0 })
    }

    /// Notes that the client does not wait for responses to requests of this tag any more. Leases that were placed for them are returned, except
    /// those in `kept`, and no more are placed.
    pub fn abandon(&self, tag: u64, kept: &[String]) {
        self.account.abandon(tag, kept);
    }

    /// Returns a lease. Requests that use it continue.
    pub fn give_back(&self, name: &str) -> Result<(), Status> {
        self.account.give_back(name).map_err(of_lease)
    }

    /// The names of returned leases that were freed. Each is reported once.
    pub fn take_forgotten(&self) -> Vec<LeaseName> {
        self.account.take_forgotten()
    }

    /// The number of the session's leases, lent and idle, and their bytes.
    pub fn used(&self) -> (u64, u64) {
        self.account.used()
    }

    /// The bytes of address space that end with the session: of its leases and of its regions.
    pub fn mapped_bytes(&self) -> u64 {
        let regions = self.regions.get().map_or(0, |regions| regions.counts().mapped_bytes);
        self.account.used().1.saturating_add(regions)
    }

    /// Maps a POSIX object and registers it under a name of this session only.
    pub fn register_system(&self, name: &str, key: &str, offset: u64, byte_size: u64) -> Result<(), Status> {
        self.api.check_running()?;
        self.api.check_client_shm()?;
        check_name(name)?;
        let (rights, charge) = (self.api.rights(key), self.api.charge_region(name, key)?);
        let register = |own: &Registry| own.register_system_as(&rights, charge, name, key, offset, byte_size);
        let outcome = self.own_regions().and_then(register).map_err(of_shm);
        self.api.audit(&outcome, || format!("register region {} of its session over {}", quoted(name), quoted(key)));
        outcome
    }

    /// Unregisters one of the session's regions, or (empty name) all of them.
    pub fn unregister_system(&self, name: &str) -> Result<(), Status> {
        self.api.check_client_shm()?;
        let outcome = match (self.regions.get(), name) {
            (None, _) => Ok(()),
            (Some(regions), "") => regions.unregister_all_system().map_err(of_shm),
            (Some(regions), name) => regions.unregister_system(name).map_err(of_shm),
        };
        self.api.audit(&outcome, || format!("unregister region {} of its session", quoted(name)));
        outcome
    }

    /// One of the session's regions, or (empty name) all, by name.
    pub fn system_status(&self, name: &str) -> Result<Vec<SystemRegionReport>, Status> {
        let wanted = Some(name).filter(|name| !name.is_empty());
        let own = self.regions.get().unwrap_or_else(|| self.api.inner.regions.none());
        let found = own.system_status(wanted).map_err(of_shm)?;
        Ok(found.into_iter().map(crate::calls::system_report).collect())
    }

    /// Whether a thread that serves connections may check and begin this request, or check it to prepare it. `leased` is as in [`Scope::infer`]. If not,
    /// use [`Api::begin_aside`].
    pub fn may_begin_here(&self, infer_request: &InferRequest, leased: &[String]) -> bool {
        self.api.may_begin_here(infer_request) && (leased.is_empty() || !self.api.is_stalling())
    }

    /// As [`Scope::may_begin_here`], for a call of a prepared request.
    pub fn may_call_here(&self, prepared: &PreparedRequest) -> bool {
        let (request, leased) = prepared.request();
        self.may_begin_here(request, leased)
    }

    /// Runs one request of the session that was admitted. `leased` names outputs that are written to leases that the
    /// server chooses. Each response comes with these leases. `parent` is the client's span above the request, from
    /// [`Api::trace_parent`]. Otherwise as [`Api::infer_stream`].
    pub fn infer(
        &self,
        admission: Admission,
        mut infer_request: Recycled<InferRequest>,
        leased: Vec<String>,
        parent: Option<Box<TraceContext>>,
        cancel: Cancel,
        sink: impl FnMut(Response, Vec<OutputLease>) + Send + 'static,
    ) -> Result<(), Status> {
        infer_request.trace = self.api.trace_packet(&infer_request.model, parent);
        self.api.submit(admission, infer_request, self, Some((&self.account, leased)), cancel, sink)
    }

    /// Checks a request of the session once, so that [`Scope::call`] can run it. `leased` is as in [`Scope::infer`].
    pub fn prepare(
        &self,
        admission: &Admission,
        infer_request: Recycled<InferRequest>,
        leased: Vec<String>,
    ) -> Result<PreparedRequest, Status> {
        self.api.note_bytes_in(&infer_request);
        PreparedRequest::of(infer_request, leased, admission, self)
    }

    /// Runs a request that was prepared in this session. Responses go to `numbered`, if it is given and they need no
    /// leases, and else to `sink`. Otherwise as [`Scope::infer`].
    pub fn call(
        &self,
        prepared: &PreparedRequest,
        parent: Option<Box<TraceContext>>,
        cancel: Cancel,
        numbered: Option<Numbered>,
        sink: impl FnMut(Response, Vec<OutputLease>) + Send + 'static,
    ) -> Result<(), CallError> {
        prepared.submit(&self.api, (self, &self.account), parent, cancel, numbered, sink)
    }

    pub(crate) fn api(&self) -> &Api {
        &self.api
    }

    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    /// The session's regions, if it ever registered any.
    pub(crate) fn registry(&self) -> Option<&Registry> {
        self.regions.get()
    }

    fn own_regions(&self) -> Result<&Registry, ShmError> {
        if let Some(own) = self.regions.get() {
            return Ok(own);
        }
        let own = self.api.session_regions(REGIONS_PER_SESSION_MAX)?;
        Ok(self.regions.get_or_init(|| own))
    }

    /// The session's own memory of that name. `None` if the session has none, even if others have.
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
        // Requests in flight may hold the account too. No client would return the leases that they place from now on.
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

    fn own_lease(&self, name: &str) -> Option<Arc<Lease>> {
        self.account.find(name)
    }
}

/// The names that HTTP and gRPC requests of one client can use.
pub(crate) struct Global<'a> {
    api: &'a Api,
}

impl Regions for Global<'_> {
    fn buffer(&self, region: &RegionRef) -> Result<Buffer, Status> {
        let RegionRef { name, offset, byte_size } = region;
        match self.api.inner.pools.find(name) {
            Some(lease) => lease_buffer(&lease, region),
            None => self.api.in_named_region(name, |own| Ok(own.locate(name, *offset, *byte_size)?.into_buffer())),
        }
    }

    fn slot(&self, region: &RegionRef) -> Result<Slot, Status> {
        let RegionRef { name, offset, byte_size } = region;
        match self.api.inner.pools.find(name) {
            Some(lease) => lease_slot(&lease, region),
            None => self.api.in_named_region(name, |own| Ok(own.locate(name, *offset, *byte_size)?.into_slot())),
        }
    }
}

fn lease_buffer(lease: &Arc<Lease>, region: &RegionRef) -> Result<Buffer, Status> {
    Ok(lease.buffer(lease.locate(region.offset, region.byte_size).map_err(of_shm)?))
}

fn lease_slot(lease: &Arc<Lease>, region: &RegionRef) -> Result<Slot, Status> {
    Ok(lease.slot(lease.locate(region.offset, region.byte_size).map_err(of_shm)?))
}
