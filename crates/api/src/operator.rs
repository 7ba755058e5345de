//! What may the operator see of others' memory, and do with it?
//!
//! The operator is the server's own user, and root. Both could read the server's memory anyway. The front end passes the user that the kernel
//! reports. This file has the rule. Protocols without users (HTTP, gRPC) have no operator.
//!
//! Regions and numbers are shown in full. The name of a lease is the right to use it, so only its beginning is shown: other people read an operator's
//! terminal and logs.

use std::fmt;

use nerite_request::Status;
use nerite_request::inspect::{
    ClassView, Dropped, LeaseView, ObjectState, PoolsView, RegionOrigin, RegionView, SessionView,
};
use nerite_shm::{Kind, LEASES_MAX, LEASES_PER_SESSION_MAX, ObjectNow, Origin, RegionState, Registry};

use crate::errors::of_shm;
use crate::{Api, Scope};

/// The most characters of a key that are shown.
const KEY_CHARS_MAX: usize = 512;

/// The calls of an operator.
#[derive(Clone)]
pub struct Operator(Api);

/// Why a client is not the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotOperator {
    uid: u32,
    own_uid: u32,
}

impl fmt::Display for NotOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotOperator { uid, own_uid } = self;
        write!(f, "this call is the operator's: user {own_uid}, who runs the server, and root may make it; ")?;
        write!(f, "this session's user is {uid}")
    }
}

/// Whether a user of a server run by `own_uid` is its operator.
pub fn check_operator(uid: u32, own_uid: u32) -> Result<(), NotOperator> {
    if uid == own_uid || uid == 0 { Ok(()) } else { Err(NotOperator { uid, own_uid }) }
}

impl Api {
    /// The operator's calls, for the user `uid` of a server that `own_uid` runs.
    pub fn operator(&self, uid: u32, own_uid: u32) -> Result<Operator, NotOperator> {
        check_operator(uid, own_uid).map(|()| Operator(self.clone()))
    }
}

impl Api {
    /// Up to `count` regions of each registry whose regions the client may list, with the state of their objects. This makes system calls for each.
    pub fn region_views(&self, count: usize) -> Result<Vec<RegionView>, Status> {
        self.check_running()?;
        let mut found = self.in_each_region(|regions| Ok(regions.inspect(None, count)))?;
        found.sort_by(|a, b| a.record.name.cmp(&b.record.name));
        Ok(found.into_iter().map(|state| region_view(state, "")).collect())
    }
}

impl Operator {
    /// Up to `count` regions whose names follow `after`, by name: those of a session, or those of all users and addresses. All regions of one name
    /// are on the same page.
    pub fn regions(&self, of: Option<&Scope>, after: Option<&str>, count: usize) -> Vec<RegionView> {
        let Some(scope) = of else { return self.common_regions(after, count) };
        let Some(regions) = scope.registry() else { return Vec::new() };
        regions.inspect(after, count).into_iter().map(|state| region_view(state, "")).collect()
    }

    fn common_regions(&self, after: Option<&str>, count: usize) -> Vec<RegionView> {
        let view = |owner: String| move |state| region_view(state, &owner);
        let regions = &self.0.inner.regions;
        let mut found: Vec<_> = regions.operator().inspect(after, count).into_iter().map(view(String::new())).collect();
        for (owner, registry) in &*regions.owned() {
            found.extend(registry.inspect(after, count).into_iter().map(view(owner.to_string())));
        }
        // The sort is stable, so of regions with one name the operator's is first.
        found.sort_by(|a, b| a.name.cmp(&b.name));
        let end = found.get(count).map_or(found.len(), |beyond| {
            let last = found.partition_point(|view| view.name < beyond.name);
            // The page ends before a name that does not fit completely, unless it is the only name.
            if last > 0 { last } else { found.partition_point(|view| view.name <= beyond.name) }
        });
        found.truncate(end);
        found
    }

    /// The region of that name: the session's own, or the first among the regions that the operator can use.
    pub fn region(&self, of: Option<&Scope>, name: &str) -> Option<RegionView> {
        self.with_registry(of, name, |regions, owner| Some(region_view(regions.inspect_one(name)?, owner)))?
    }

    /// The leases of all sessions, by size.
    pub fn pools(&self) -> PoolsView {
        let pools = &self.0.inner.pools;
        let (limits, (classes, bytes_peak)) = (pools.limits(), pools.classes());
        let class = |class: nerite_shm::ClassCounts| {
            let nerite_shm::ClassCounts { byte_size, lent, idle, leases, peak } = class;
            ClassView { byte_size, lent, idle, held: leases.saturating_sub(lent + idle), peak }
        };
        PoolsView {
            bytes_max: limits.bytes_max,
            session_bytes_max: limits.session_bytes_max,
            leases_max: LEASES_MAX as u64,
            session_leases_max: LEASES_PER_SESSION_MAX as u64,
            bytes_peak,
            classes: classes.into_iter().map(class).collect(),
        }
    }

    /// The leases of a session, by size.
    pub fn leases(&self, of: &Scope) -> Vec<LeaseView> {
        let lease = |lease: nerite_shm::LeaseState| {
            let nerite_shm::LeaseState { name, byte_size, lent, users } = lease;
            LeaseView { name, byte_size: byte_size as u64, lent, users: users as u64 }
        };
        of.account().leases().into_iter().map(lease).collect()
    }

    /// Adds the memory that counts against a session to `view`, which describes the session.
    pub fn session(&self, of: &Scope, view: SessionView) -> SessionView {
        let (leases, lease_bytes) = of.used();
        let regions = of.registry().map_or(0, |regions| regions.counts().mapped);
        SessionView { regions, leases, lease_bytes, ..view }
    }

    /// Ends the registration of one region. Requests in flight keep its memory.
    pub fn drop_region(&self, of: Option<&Scope>, name: &str) -> Result<Dropped, Status> {
        let unknown = || Status::not_found(format!("no region '{name}' is registered"));
        let dropped = self.with_registry(of, name, |regions, _| {
            let found = regions.inspect_one(name).filter(|found| found.registered).ok_or_else(unknown)?;
            match found.record.kind() {
                Kind::System => regions.unregister_system(name),
                Kind::Cuda => regions.unregister_cuda(name),
            }
            .map_err(of_shm)?;
            Ok(Dropped { count: 1, in_use: u64::from(found.users > 0) })
        });
        dropped.unwrap_or_else(|| Err(unknown()))
    }

    /// Ends the registrations of the regions of all users and addresses.
    pub fn drop_all_regions(&self) -> Result<Dropped, Status> {
        let (regions, before) = (&self.0.inner.regions, self.0.inner.regions.counts().registered);
        regions.unregister_all().map_err(of_shm)?;
        let count = before.saturating_sub(regions.counts().registered);
        Ok(Dropped { count, in_use: regions.still_used() })
    }

    /// Calls `query` with the registry that has a region of that name, and with the region's owner. The owner is empty for the operator and for the session.
    fn with_registry<T>(&self, of: Option<&Scope>, name: &str, query: impl FnOnce(&Registry, &str) -> T) -> Option<T> {
        let regions = &self.0.inner.regions;
        if let Some(scope) = of {
            return scope.registry().map(|own| query(own, ""));
        }
        if regions.operator().inspect_one(name).is_some() {
            return Some(query(regions.operator(), ""));
        }
        let owned = regions.owned();
        let (owner, found) = owned.iter().find(|(_, registry)| registry.inspect_one(name).is_some())?;
        Some(query(found, &owner.to_string()))
    }
}

fn region_view(state: RegionState, owner: &str) -> RegionView {
    let RegionState { record, registered, users, lost_at, object_bytes, object_now } = state;
    let origin = match &record.origin {
        Origin::System { key, offset } => RegionOrigin::System { key: shown(key), offset: *offset },
        Origin::Cuda { device_id } => RegionOrigin::Cuda { device_id: *device_id },
    };
    let object_now = match object_now {
        ObjectNow::Same { byte_size } => ObjectState::Same { byte_size },
        ObjectNow::Another => ObjectState::Another,
        ObjectNow::Gone => ObjectState::Gone,
        ObjectNow::Unknown => ObjectState::Unknown,
    };
    let (name, byte_size, lost_at) = (record.name.to_string(), record.byte_size, lost_at.map(|at| at as u64));
    RegionView {
        name,
        origin,
        byte_size,
        session: 0,
        owner: owner.to_owned(),
        registered,
        users: users as u64,
        lost_at,
        object_bytes,
        object_now,
    }
}

/// A key, shortened if it is too long to read: the number of slashes at its beginning has no limit.
fn shown(key: &str) -> String {
    match key.char_indices().nth(KEY_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &key[..end]),
        None => key.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(uid: u32, own_uid: u32, refusal: Option<&str>) {
        assert_eq!(check_operator(uid, own_uid).err().map(|why| why.to_string()).as_deref(), refusal);
    }

    #[test]
    fn only_the_servers_own_user_and_root_are_operators() {
        check(1000, 1000, None);
        check(0, 1000, None);
        check(0, 0, None);
        let refusal = "this call is the operator's: user 1000, who runs the server, and root may make it; this session's \
                       user is 1001";
        check(1001, 1000, Some(refusal));
        check(u32::MAX, 0, Some(&refusal.replace("1000,", "0,").replace("1001", "4294967295")));
    }
}
