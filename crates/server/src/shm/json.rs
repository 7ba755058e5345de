//! How is the answer written for programs?

use nerite_client::inspect::{ClassView, LeaseView, ObjectState, PoolsView, RegionOrigin, RegionView, SessionView};
use serde_json::{Value, json};

use super::answer::{Answer, ListedRegion, Server};
use super::show::{kind, totals};
use crate::plain::plain_json;

/// One line of JSON.
pub(super) fn line(server: &Server, answer: &Answer) -> String {
    let mut value = match answer {
        Answer::Regions { regions, .. } | Answer::Region { regions, .. } => {
            json!({ "regions": all(regions, region_json) })
        }
        Answer::Session { session, regions, leases } => json!({
            "session": session_json(session),
            "regions": all(regions, region_json),
            "leases": all(leases, lease_json),
        }),
        Answer::Pools(pools) => pools_json(pools),
        Answer::Sessions(sessions) => json!({ "sessions": all(sessions, session_json) }),
        Answer::Dropped { dropped, .. } => json!({ "dropped": dropped.count, "in_use": dropped.in_use }),
        Answer::Listed(regions) => json!({ "regions": all(regions, listed_json) }),
        Answer::DroppedSilently { .. } => json!({}),
    };
    value["server"] = match server {
        Server::Socket { path, pid } => json!({ "pid": pid, "session_socket": path.display().to_string() }),
        Server::Http { url } => json!({ "url": url }),
    };
    plain_json(&format!("{value}\n"))
}

fn all<T>(things: &[T], one: impl Fn(&T) -> Value) -> Value {
    things.iter().map(one).collect()
}

fn region_json(region: &RegionView) -> Value {
    let (object_now, object_bytes_now) = match region.object_now {
        ObjectState::Unknown => ("unknown", Value::Null),
        ObjectState::Same { byte_size } => ("same", byte_size.into()),
        ObjectState::Another => ("another", Value::Null),
        ObjectState::Gone => ("gone", Value::Null),
    };
    let mut value = json!({
        "name": region.name,
        "kind": kind(region),
        "byte_size": region.byte_size,
        "session": region.session,
        "owner": region.owner,
        "registered": region.registered,
        "in_flight": region.users,
        "poisoned": region.lost_at.is_some(),
        "poisoned_at": region.lost_at,
        "object_byte_size": region.object_bytes,
        "object_now": object_now,
        "object_byte_size_now": object_bytes_now,
    });
    match &region.origin {
        RegionOrigin::System { key, offset } => {
            value["key"] = key.as_str().into();
            value["offset"] = (*offset).into();
        }
        RegionOrigin::Cuda { device_id } => value["device_id"] = (*device_id).into(),
    }
    value
}

fn session_json(session: &SessionView) -> Value {
    json!({
        "session": session.number,
        "pid": session.pid,
        "uid": session.uid,
        "command": session.command,
        "client": session.client,
        "age_ms": session.age_ms,
        "regions": session.regions,
        "leases": session.leases,
        "lease_bytes": session.lease_bytes,
        "in_flight": session.inferences,
        "operator_only": session.operator_only,
    })
}

fn lease_json(lease: &LeaseView) -> Value {
    json!({ "name": lease.name, "byte_size": lease.byte_size, "lent": lease.lent, "in_flight": lease.users })
}

fn pools_json(pools: &PoolsView) -> Value {
    let class = |class: &ClassView| {
        json!({
            "byte_size": class.byte_size,
            "lent": class.lent,
            "free": class.idle,
            "held": class.held,
            "peak": class.peak,
        })
    };
    let (now, leases) = totals(pools);
    json!({
        "bytes": now,
        "leases": leases,
        "bytes_peak": pools.bytes_peak,
        "bytes_max": pools.bytes_max,
        "leases_max": pools.leases_max,
        "session_bytes_max": pools.session_bytes_max,
        "session_leases_max": pools.session_leases_max,
        "classes": all(&pools.classes, class),
    })
}

fn listed_json(region: &ListedRegion) -> Value {
    let ListedRegion { name, kind, place, offset, byte_size } = region;
    json!({ "name": name, "kind": kind, "place": place, "offset": offset, "byte_size": byte_size })
}
