//! Which shared memory may the visitor see, who holds it, and which of it is stale?
//!
//! The operator sees the regions of all users and addresses, all sessions with their leases, and the pools. Others see the regions that their own
//! calls would list, and the sessions of their own user.

use nerite_api::{Api, Operator};
use nerite_request::inspect::{LeaseView, ObjectState, PoolsView, RegionOrigin, RegionView, SessionView};
use nerite_request::{Peer, Status};
use nerite_session::Inspector;
use nerite_wire::json::Writer;

use crate::limits::{LEASES_MAX, REGIONS_MAX};

/// The memory that a visitor may see.
#[derive(Debug, Default)]
struct Seen {
    regions: Vec<RegionView>,
    sessions: Vec<SessionView>,
    leases: Vec<(u64, LeaseView)>,
    /// The pools of leases, for the operator only.
    pools: Option<PoolsView>,
}

/// The memory that the visitor may see, as JSON. This makes system calls for each region's object.
pub fn write(api: &Api, sessions: Option<&Inspector>) -> Result<Vec<u8>, Status> {
    let peer = api.peer();
    let operator = operator_of(api);
    // One more than the limit is requested, to know whether any is left out.
    let mut seen = match &operator {
        Some(operator) => Seen {
            regions: operator.regions(None, None, REGIONS_MAX + 1),
            pools: Some(operator.pools()),
            ..Seen::default()
        },
        None => Seen { regions: api.region_views(REGIONS_MAX + 1)?, ..Seen::default() },
    };
    if let Some(inspector) = sessions {
        seen.regions.extend(inspector.regions(peer, REGIONS_MAX + 1));
        seen.sessions = inspector.sessions(peer);
        seen.leases = inspector.leases(peer, LEASES_MAX + 1);
    }
    Ok(write_seen(peer, &seen))
}

/// The operator's calls, if the visitor is the operator.
fn operator_of(api: &Api) -> Option<Operator> {
    let own = Peer::own().uid()?;
    api.operator(api.peer().uid()?, own).ok()
}

fn write_seen(peer: &Peer, seen: &Seen) -> Vec<u8> {
    let Seen { regions, sessions, leases, pools } = seen;
    let regions_shown = regions.len().min(2 * REGIONS_MAX);
    let leases_shown = leases.len().min(LEASES_MAX);
    let mut out = Writer::with_capacity(256 + 256 * (regions_shown + sessions.len()) + 96 * leases_shown);
    out.object(|out| {
        out.key("seen_by").string(peer.to_string().as_bytes());
        out.key("is_operator").bool(peer.is_operator());
        out.key("regions").array(|out| regions.iter().take(regions_shown).for_each(|region| write_region(out, region)));
        out.key("more_regions").bool(regions.len() > regions_shown);
        out.key("sessions").array(|out| sessions.iter().for_each(|session| write_session(out, session)));
        out.key("leases")
            .array(|out| leases.iter().take(leases_shown).for_each(|(of, lease)| write_lease(out, *of, lease)));
        out.key("more_leases").bool(leases.len() > leases_shown);
        if let Some(pools) = pools {
            out.key("pools").object(|out| write_pools(out, pools));
        }
    });
    out.into_bytes()
}

fn write_region(out: &mut Writer, region: &RegionView) {
    let (state, is_stale) = state(region);
    out.object(|out| {
        out.key("name").string(region.name.as_bytes());
        match &region.origin {
            RegionOrigin::System { key, offset } => {
                out.key("kind").string(b"system");
                out.key("key").string(key.as_bytes());
                out.key("offset").unsigned(*offset);
            }
            RegionOrigin::Cuda { device_id } => {
                out.key("kind").string(b"cuda");
                out.key("device_id").unsigned(*device_id);
            }
        }
        out.key("byte_size").unsigned(region.byte_size);
        out.key("session").unsigned(region.session);
        out.key("owner").string(region.owner.as_bytes());
        out.key("in_flight").unsigned(region.users);
        out.key("state").string(state.as_bytes());
        out.key("is_stale").bool(is_stale);
    });
}

/// The most important fact about a region, and whether the region is stale: requests with it fail, or its client has probably forgotten it.
fn state(region: &RegionView) -> (String, bool) {
    if !region.registered {
        return ("awaiting unregister: the last request that uses it is in flight".to_owned(), true);
    }
    match (region.lost_at, region.object_now, &region.origin) {
        (Some(at), ..) => (format!("poisoned: no memory at byte {at}; register it again"), true),
        (None, ObjectState::Same { byte_size }, RegionOrigin::System { offset, .. })
            if byte_size < offset.saturating_add(region.byte_size) =>
        {
            (format!("shrunk to {byte_size} bytes: requests that reach the rest fail"), true)
        }
        (None, ObjectState::Another, _) => ("key replaced: it leads to another object now".to_owned(), true),
        (None, ObjectState::Gone, _) => ("key unlinked: nobody new can open the object".to_owned(), true),
        _ => ("good".to_owned(), false),
    }
}

fn write_session(out: &mut Writer, session: &SessionView) {
    out.object(|out| {
        out.key("session").unsigned(session.number);
        out.key("pid").unsigned(session.pid.into());
        out.key("uid").unsigned(session.uid.into());
        out.key("command").string(session.command.as_bytes());
        out.key("client").string(session.client.as_bytes());
        out.key("age_ms").unsigned(session.age_ms);
        out.key("regions").unsigned(session.regions);
        out.key("leases").unsigned(session.leases);
        out.key("lease_bytes").unsigned(session.lease_bytes);
        out.key("in_flight").unsigned(session.inferences);
    });
}

fn write_lease(out: &mut Writer, session: u64, lease: &LeaseView) {
    out.object(|out| {
        out.key("name").string(lease.name.as_bytes());
        out.key("session").unsigned(session);
        out.key("byte_size").unsigned(lease.byte_size);
        out.key("lent").bool(lease.lent);
        out.key("in_flight").unsigned(lease.users);
    });
}

fn write_pools(out: &mut Writer, pools: &PoolsView) {
    out.key("bytes_max").unsigned(pools.bytes_max);
    out.key("bytes_peak").unsigned(pools.bytes_peak);
    out.key("leases_max").unsigned(pools.leases_max);
    out.key("classes").array(|out| {
        for class in &pools.classes {
            out.object(|out| {
                out.key("byte_size").unsigned(class.byte_size);
                out.key("lent").unsigned(class.lent);
                out.key("free").unsigned(class.idle);
                out.key("held").unsigned(class.held);
                out.key("peak").unsigned(class.peak);
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(object_now: ObjectState) -> RegionView {
        let origin = RegionOrigin::System { key: "/k".into(), offset: 64 };
        RegionView { name: "r".into(), origin, byte_size: 64, registered: true, object_now, ..RegionView::default() }
    }

    #[track_caller]
    fn check(region: &RegionView, begins: &str, stale: bool) {
        let (text, is_stale) = state(region);
        assert!(text.starts_with(begins) && is_stale == stale, "{text}");
    }

    #[test]
    fn a_stale_region_is_shown_with_its_reason() {
        check(&region(ObjectState::Unknown), "good", false);
        check(&region(ObjectState::Same { byte_size: 128 }), "good", false);
        check(&region(ObjectState::Same { byte_size: 127 }), "shrunk to 127 bytes", true);
        check(&region(ObjectState::Another), "key replaced", true);
        check(&region(ObjectState::Gone), "key unlinked", true);
        check(
            &RegionView { lost_at: Some(4096), ..region(ObjectState::Gone) },
            "poisoned: no memory at byte 4096",
            true,
        );
        check(&RegionView { registered: false, ..region(ObjectState::Gone) }, "awaiting unregister", true);
    }

    #[test]
    fn long_lists_are_cut_and_say_so() {
        let seen = Seen { regions: vec![region(ObjectState::Unknown); 2 * REGIONS_MAX + 1], ..Seen::default() };
        let text = String::from_utf8(write_seen(&Peer::own(), &seen)).expect("UTF-8");
        assert_eq!(text.matches(r#""name":"r""#).count(), 2 * REGIONS_MAX);
        assert!(text.contains(r#""more_regions":true"#) && text.contains(r#""more_leases":false"#), "{text}");
    }
}
