//! How is the answer shown to people?

use nerite_client::inspect::{
    ClassView, Dropped, LeaseView, ObjectState, PoolsView, RegionOrigin, RegionView, SessionView,
};

use super::answer::{Answer, ListedRegion, Server};
use crate::plain::{cell, plain, size};
use crate::tables::table;

/// For people.
pub(super) fn text(answer: &Answer) -> String {
    match answer {
        Answer::Regions { regions, sessions } => regions_text(regions, sessions),
        Answer::Region { regions, sessions } => {
            let each: Vec<String> = regions.iter().map(|region| region_text(region, sessions)).collect();
            each.join("\n")
        }
        Answer::Session { session, regions, leases } => session_text(session, regions, leases),
        Answer::Pools(pools) => pools_text(pools),
        Answer::Sessions(sessions) => sessions_text(sessions),
        Answer::Dropped { what, dropped } => dropped_text(what, *dropped),
        Answer::Listed(regions) => listed_text(regions),
        Answer::DroppedSilently { what } => format!("dropped {}\n", plain(what)),
    }
}

/// The server that is asked, as a sentence.
pub(super) fn server(server: &Server) -> String {
    match server {
        Server::Socket { path, pid: Some(pid) } => format!("asking the server of process {pid} at {}", path.display()),
        Server::Socket { path, pid: None } => format!("asking the server at {}", path.display()),
        Server::Http { url } => format!("asking the server at {url}"),
    }
}

fn regions_text(regions: &[RegionView], sessions: &[SessionView]) -> String {
    if regions.is_empty() {
        return "no regions\n".to_owned();
    }
    let row = |region: &RegionView| {
        let (place, offset) = place(region);
        let (kind, bytes, users) = (kind(region).to_owned(), region.byte_size.to_string(), region.users.to_string());
        vec![
            cell(&region.name),
            kind,
            cell(&place),
            offset,
            bytes,
            cell(&owner(region, sessions)),
            users,
            state(region),
        ]
    };
    let rows: Vec<_> = regions.iter().map(row).collect();
    table(&["Name", "Kind", "Key or device", "Offset", "Bytes", "Whose", "In flight", "State"], &rows)
}

fn region_text(region: &RegionView, sessions: &[SessionView]) -> String {
    let (place, offset) = place(region);
    let then = match region.object_bytes {
        0 => "not known".to_owned(),
        bytes => format!("{bytes} bytes"),
    };
    let now = match region.object_now {
        ObjectState::Unknown => "not known".to_owned(),
        ObjectState::Same { byte_size } => format!("{byte_size} bytes"),
        ObjectState::Another => "the key leads to another object; the one registered lives on here".to_owned(),
        ObjectState::Gone => "the key is gone; the object registered lives on here".to_owned(),
    };
    lines(&[
        ("name", plain(&region.name)),
        ("kind", kind(region).to_owned()),
        (if matches!(region.origin, RegionOrigin::Cuda { .. }) { "device" } else { "key" }, plain(&place)),
        ("offset", offset),
        ("bytes", region.byte_size.to_string()),
        ("whose", plain(&owner(region, sessions))),
        (
            "registered",
            if region.registered { "yes" } else { "no, it goes with the last request that uses it" }.to_owned(),
        ),
        ("in flight", format!("{} tensors of requests hold it", region.users)),
        ("object then", then),
        ("object now", now),
        ("mapping", mapping(region)),
        ("state", state(region)),
    ])
}

fn session_text(session: &SessionView, regions: &[RegionView], leases: &[LeaseView]) -> String {
    let SessionView { number, pid, uid, command, client, .. } = session;
    let mut text = lines(&[
        ("session", number.to_string()),
        ("process", process(*pid, command)),
        ("user", uid.to_string()),
        ("client", plain(client)),
        ("age", age(session.age_ms)),
        ("leases", format!("{}, {}", session.leases, size(session.lease_bytes))),
        ("in flight", format!("{} inferences", session.inferences)),
    ]);
    if session.operator_only {
        text += "It has one of the operator's places, for the operator's calls alone.\n";
    }
    text += "\n";
    text += &regions_text(regions, std::slice::from_ref(session));
    let row = |lease: &LeaseView| {
        let state = if lease.lent { "lent" } else { "idle" };
        vec![plain(&lease.name), lease.byte_size.to_string(), state.to_owned(), lease.users.to_string()]
    };
    let rows: Vec<_> = leases.iter().map(row).collect();
    text + &if rows.is_empty() {
        "no leases\n".to_owned()
    } else {
        table(&["Lease", "Bytes", "State", "In flight"], &rows)
    }
}

fn pools_text(pools: &PoolsView) -> String {
    let row = |class: &ClassView| {
        let numbers = [class.byte_size, class.lent, class.idle, class.held, bytes(class), class.peak];
        numbers.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let rows: Vec<_> = pools.classes.iter().map(row).collect();
    let text = if rows.is_empty() {
        "nothing was lent yet\n".to_owned()
    } else {
        table(&["Lease bytes", "Lent", "Free", "Held", "Bytes", "Peak"], &rows)
    };
    let (now, leases) = totals(pools);
    text + &format!(
        "{} in {leases} leases, at the most {} at one time\nlimits: {} in {} leases for all sessions (--lease-max-bytes), {} \
         in {} leases for each (--session-max-bytes)\n",
        size(now),
        size(pools.bytes_peak),
        size(pools.bytes_max),
        pools.leases_max,
        size(pools.session_bytes_max),
        pools.session_leases_max
    )
}

fn sessions_text(sessions: &[SessionView]) -> String {
    if sessions.is_empty() {
        return "no sessions but this one\n".to_owned();
    }
    let row = |session: &SessionView| {
        let number = |number: u64| number.to_string();
        vec![
            number(session.number),
            if session.pid == 0 { "?".to_owned() } else { session.pid.to_string() },
            session.uid.to_string(),
            cell(&session.command),
            cell(&session.client),
            age(session.age_ms),
            number(session.regions),
            number(session.leases),
            number(session.lease_bytes),
            number(session.inferences),
        ]
    };
    let rows: Vec<_> = sessions.iter().map(row).collect();
    let heading = ["Session", "Pid", "Uid", "Command", "Client", "Age", "Regions", "Leases", "Bytes", "In flight"];
    table(&heading, &rows)
}

fn dropped_text(what: &str, dropped: Dropped) -> String {
    let rest = match dropped {
        Dropped { in_use: 0, .. } => String::new(),
        Dropped { count: 1, .. } => "; requests still use it, and its memory goes with the last of them".to_owned(),
        Dropped { in_use, .. } => format!("; requests still use {in_use} of them, whose memory goes with the last"),
    };
    format!("dropped {}{rest}\n", plain(what))
}

fn listed_text(regions: &[ListedRegion]) -> String {
    if regions.is_empty() {
        return "no regions\n".to_owned();
    }
    let row = |region: &ListedRegion| {
        let ListedRegion { name, kind, place, offset, byte_size } = region;
        vec![cell(name), (*kind).to_owned(), cell(place), offset.to_string(), byte_size.to_string()]
    };
    let rows: Vec<_> = regions.iter().map(row).collect();
    table(&["Name", "Kind", "Key or device", "Offset", "Bytes"], &rows)
}

pub(super) fn kind(region: &RegionView) -> &'static str {
    match region.origin {
        RegionOrigin::System { .. } => "system",
        RegionOrigin::Cuda { .. } => "cuda",
    }
}

fn place(region: &RegionView) -> (String, String) {
    match &region.origin {
        RegionOrigin::System { key, offset } => (key.clone(), offset.to_string()),
        RegionOrigin::Cuda { device_id } => (device_id.to_string(), "0".to_owned()),
    }
}

fn owner(region: &RegionView, sessions: &[SessionView]) -> String {
    match (region.session, sessions.iter().find(|session| session.number == region.session)) {
        (0, _) if !region.owner.is_empty() => region.owner.clone(),
        (0, _) => "common".to_owned(),
        (number, Some(SessionView { pid, uid, .. })) => format!("session {number} (pid {pid}, uid {uid})"),
        (number, None) => format!("session {number}"),
    }
}

/// What an operator should know of the region before anything else.
fn state(region: &RegionView) -> String {
    let waits = if region.registered { "" } else { "awaiting unregister, " };
    waits.to_owned()
        + &match (region.lost_at, region.object_now, &region.origin) {
            (Some(at), ..) => format!("poisoned: no memory at byte {at}; takes no requests until registered again"),
            (None, ObjectState::Same { byte_size }, RegionOrigin::System { offset, .. })
                if byte_size < offset.saturating_add(region.byte_size) =>
            {
                format!("shrunk to {byte_size} bytes: requests that reach the rest will fail")
            }
            (None, ObjectState::Another, _) => "good, key replaced".to_owned(),
            (None, ObjectState::Gone, _) => "good, key unlinked".to_owned(),
            _ => "good".to_owned(),
        }
}

fn mapping(region: &RegionView) -> String {
    match region.lost_at {
        None => format!("{} bytes are mapped, none of them found missing", region.byte_size),
        Some(at) => format!("memory was missing at byte {at}; the server's own zeros are mapped in its place"),
    }
}

fn process(pid: u32, command: &str) -> String {
    match pid {
        0 => "not seen from the server's process namespace".to_owned(),
        pid => format!("{pid} ({})", plain(command)),
    }
}

fn age(ms: u64) -> String {
    match ms / 1000 {
        0 => format!("{ms} ms"),
        s if s < 120 => format!("{s} s"),
        s if s < 7200 => format!("{} min", s / 60),
        s => format!("{} h", s / 3600),
    }
}

fn bytes(class: &ClassView) -> u64 {
    class.byte_size * (class.lent + class.idle + class.held)
}

/// Bytes and leases of all sizes.
pub(super) fn totals(pools: &PoolsView) -> (u64, u64) {
    let leases = pools.classes.iter().map(|class| class.lent + class.idle + class.held).sum();
    (pools.classes.iter().map(bytes).sum(), leases)
}

fn lines(pairs: &[(&str, String)]) -> String {
    let lines: Vec<_> = pairs.iter().map(|(name, value)| format!("{name:12} {value}\n")).collect();
    lines.concat()
}
