//! What may an operator read about shared memory?

/// A region as its server sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionView {
    /// Its registered name.
    pub name: String,
    /// Where its bytes come from.
    pub origin: RegionOrigin,
    /// Bytes.
    pub byte_size: u64,
    /// The session that it belongs to; 0 for those registered over HTTP and gRPC.
    pub session: u64,
    /// The user or address that it belongs to, in words; empty for the operator's and for those of sessions.
    pub owner: String,
    /// Whether it is registered. If not, it exists until the last request that uses it ends.
    pub registered: bool,
    /// Tensors of requests that hold it now.
    pub users: u64,
    /// The offset of a byte that had no memory when it was accessed. Requests with this region fail.
    pub lost_at: Option<u64>,
    /// The size of its object when it was registered; 0 if that is not known.
    pub object_bytes: u64,
    /// What its object is now.
    pub object_now: ObjectState,
}

/// Where a region's bytes come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionOrigin {
    /// A POSIX shared memory object.
    System {
        /// Its key, as the client wrote it.
        key: String,
        /// First byte of the object that the region covers.
        offset: u64,
    },
    /// Memory of an accelerator.
    Cuda {
        /// The device's number on the server.
        device_id: u64,
    },
}

impl Default for RegionOrigin {
    fn default() -> RegionOrigin {
        RegionOrigin::System { key: String::new(), offset: 0 }
    }
}

/// The object that has a region's key now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ObjectState {
    /// It is not known.
    #[default]
    Unknown,
    /// The object that was registered.
    Same {
        /// Bytes it has now.
        byte_size: u64,
    },
    /// Another object has the key now.
    Another,
    /// No object: it was unlinked. The region can still be used.
    Gone,
}

/// The leases of all sessions, and their limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolsView {
    /// Bytes that all sessions together may have.
    pub bytes_max: u64,
    /// Bytes that one session may have.
    pub session_bytes_max: u64,
    /// Leases there may be.
    pub leases_max: u64,
    /// Leases that one session may have.
    pub session_leases_max: u64,
    /// The most bytes there were at one time.
    pub bytes_peak: u64,
    /// Sizes that there are or were leases of, ascending.
    pub classes: Vec<ClassView>,
}

/// The leases of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassView {
    /// Bytes of each.
    pub byte_size: u64,
    /// Leases that clients have.
    pub lent: u64,
    /// Leases that were returned, and are kept for their session's next use.
    pub idle: u64,
    /// Leases that only requests hold, because the session has ended or no response has reported the lease to it yet.
    pub held: u64,
    /// The most leases of this size at one time.
    pub peak: u64,
}

/// A session, as its server sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionView {
    /// Its number: the first since the server's start is 1.
    pub number: u64,
    /// The process that connected, as the server's process namespace numbers it; 0 if it cannot be seen there.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// The program's name when it connected, as the system knows it. Programs choose it themselves.
    pub command: String,
    /// What the client called itself in Hello; empty before that.
    pub client: String,
    /// Milliseconds since it connected.
    pub age_ms: u64,
    /// Regions that are registered, or still in use.
    pub regions: u64,
    /// Leases that count against it, lent and idle.
    pub leases: u64,
    /// Their bytes.
    pub lease_bytes: u64,
    /// Inferences whose last response has not been sent.
    pub inferences: u64,
    /// Whether it may only make the operator's calls, because the server has as many sessions as it may have.
    pub operator_only: bool,
}

/// A lease, as its server sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseView {
    /// The beginning of its name. Anyone who knows the whole name can use the lease, so even the operator does not see it.
    pub name: String,
    /// Bytes.
    pub byte_size: u64,
    /// Whether the client has the lease. If not, the lease was returned and is idle.
    pub lent: bool,
    /// Tensors of requests that hold it now.
    pub users: u64,
}

/// The result of dropping regions or sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Regions, or sessions, that were dropped.
    pub count: u64,
    /// The regions whose memory exists only until the requests that use it end.
    pub in_use: u64,
}
