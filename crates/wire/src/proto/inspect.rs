//! How are the answers to an operator encoded in a session's packets?
//!
//! Both directions are in this file: the server encodes what the client decodes.

use nerite_request::inspect::{
    ClassView, Dropped, LeaseView, ObjectState, PoolsView, RegionOrigin, RegionView, SessionView,
};

use super::session::v1;
use v1::inspected_region::Origin;

impl From<RegionView> for v1::InspectedRegion {
    fn from(region: RegionView) -> v1::InspectedRegion {
        let RegionView {
            name,
            origin,
            byte_size,
            session,
            owner,
            registered,
            users,
            lost_at,
            object_bytes,
            object_now,
        } = region;
        let origin = match origin {
            RegionOrigin::System { key, offset } => Origin::System(v1::SystemOrigin { key, offset }),
            RegionOrigin::Cuda { device_id } => Origin::Cuda(v1::CudaOrigin { device_id }),
        };
        let (object_now, object_bytes_now) = match object_now {
            ObjectState::Unknown => (v1::ObjectNow::ObjectUnknown, 0),
            ObjectState::Same { byte_size } => (v1::ObjectNow::ObjectSame, byte_size),
            ObjectState::Another => (v1::ObjectNow::ObjectAnother, 0),
            ObjectState::Gone => (v1::ObjectNow::ObjectGone, 0),
        };
        v1::InspectedRegion {
            name,
            session,
            byte_size,
            registered,
            users,
            origin: Some(origin),
            lost_at,
            object_bytes,
            object_now: object_now.into(),
            object_bytes_now,
            owner,
        }
    }
}

impl From<v1::InspectedRegion> for RegionView {
    fn from(region: v1::InspectedRegion) -> RegionView {
        let object_now = match region.object_now() {
            v1::ObjectNow::ObjectUnknown => ObjectState::Unknown,
            v1::ObjectNow::ObjectSame => ObjectState::Same { byte_size: region.object_bytes_now },
            v1::ObjectNow::ObjectAnother => ObjectState::Another,
            v1::ObjectNow::ObjectGone => ObjectState::Gone,
        };
        let origin = match region.origin {
            Some(Origin::System(v1::SystemOrigin { key, offset })) => RegionOrigin::System { key, offset },
            Some(Origin::Cuda(v1::CudaOrigin { device_id })) => RegionOrigin::Cuda { device_id },
            None => RegionOrigin::default(),
        };
        let v1::InspectedRegion { name, session, byte_size, registered, users, lost_at, object_bytes, owner, .. } =
            region;
        RegionView { name, origin, byte_size, session, owner, registered, users, lost_at, object_bytes, object_now }
    }
}

impl From<PoolsView> for v1::InspectedPools {
    fn from(pools: PoolsView) -> v1::InspectedPools {
        let PoolsView { bytes_max, session_bytes_max, leases_max, session_leases_max, bytes_peak, classes } = pools;
        let class =
            |ClassView { byte_size, lent, idle, held, peak }| v1::InspectedClass { byte_size, lent, idle, held, peak };
        let classes = classes.into_iter().map(class).collect();
        v1::InspectedPools { bytes_max, session_bytes_max, leases_max, session_leases_max, bytes_peak, classes }
    }
}

impl From<v1::InspectedPools> for PoolsView {
    fn from(pools: v1::InspectedPools) -> PoolsView {
        let v1::InspectedPools { bytes_max, session_bytes_max, leases_max, session_leases_max, bytes_peak, classes } =
            pools;
        let class =
            |v1::InspectedClass { byte_size, lent, idle, held, peak }| ClassView { byte_size, lent, idle, held, peak };
        let classes = classes.into_iter().map(class).collect();
        PoolsView { bytes_max, session_bytes_max, leases_max, session_leases_max, bytes_peak, classes }
    }
}

/// Converts between structs with the same field names.
macro_rules! same_fields {
    ($($view:ident = $message:ident { $($field:ident),* };)*) => {$(
        impl From<$view> for v1::$message {
            fn from($view { $($field),* }: $view) -> v1::$message {
                v1::$message { $($field),* }
            }
        }

        impl From<v1::$message> for $view {
            fn from(v1::$message { $($field),* }: v1::$message) -> $view {
                $view { $($field),* }
            }
        }
    )*};
}

same_fields! {
    SessionView = InspectedSession {
        number, pid, uid, command, client, age_ms, regions, leases, lease_bytes, inferences, operator_only
    };
    LeaseView = InspectedLease { name, byte_size, lent, users };
    Dropped = Dropped { count, in_use };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(origin: RegionOrigin, object_now: ObjectState, lost_at: Option<u64>) {
        let name = "a\u{1b}[2J".to_owned();
        let (byte_size, session, owner, registered) = (1, 2, "user 7".to_owned(), true);
        let (users, object_bytes) = (3, 4);
        let view = RegionView {
            name,
            origin,
            byte_size,
            session,
            owner,
            registered,
            users,
            lost_at,
            object_bytes,
            object_now,
        };
        assert_eq!(RegionView::from(v1::InspectedRegion::from(view.clone())), view);
    }

    #[test]
    fn the_client_decodes_what_the_server_encodes() {
        check(RegionOrigin::System { key: "/k".into(), offset: 5 }, ObjectState::Same { byte_size: 6 }, None);
        check(RegionOrigin::Cuda { device_id: 7 }, ObjectState::Unknown, Some(0));
        check(RegionOrigin::default(), ObjectState::Another, Some(8));
        check(RegionOrigin::default(), ObjectState::Gone, None);
        let class = ClassView { byte_size: 1, lent: 2, idle: 3, held: 4, peak: 5 };
        let (bytes_max, session_bytes_max, leases_max, session_leases_max, bytes_peak) = (1, 2, 3, 4, 5);
        let classes = vec![class; 2];
        let view = PoolsView { bytes_max, session_bytes_max, leases_max, session_leases_max, bytes_peak, classes };
        assert_eq!(PoolsView::from(v1::InspectedPools::from(view.clone())), view);
    }
}
