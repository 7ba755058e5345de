//! How many connections may there be, and how long may their clients keep the server waiting?

use std::time::Duration;

/// Connections that may wait to be accepted, if the system lets so many (`net.core.somaxconn`). The kernel forgets those beyond, and
/// their clients ask again after a second.
pub const BACKLOG: u32 = 4096;
/// Nothing is accepted for so long after an accept failed. It mostly fails because no descriptor is left.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Connections in all where the limit of open files allows more. Each one costs up to about 20 KiB even if it is idle.
pub const CONNECTIONS_MAX: usize = 16_384;
/// A limit below this would leave no room for reserves.
pub const CONNECTIONS_MIN: usize = 16;
/// Of so many descriptors, one is not for connections: it stays for regions, leases, sessions, models and files.
pub const DESCRIPTORS_PER_RESERVED: u64 = 4;
/// One of so many places is for operators alone, [`OPERATORS_RESERVE_MAX`] at the most.
pub const PLACES_PER_OPERATORS_RESERVE: usize = 16;
/// Operators need few places: to look, to stop, to unload.
pub const OPERATORS_RESERVE_MAX: usize = 64;
/// One of so many places is for everybody but the operators.
pub const PLACES_PER_OTHERS_RESERVE: usize = 8;
/// Connections that lost their places may linger for a moment, to end well. Beyond one for so many places they are closed at once.
pub const PLACES_PER_LINGERING: usize = 16;
/// Nothing is accepted while one for so many places is still open: each has a descriptor.
pub const PLACES_PER_LEAVING: usize = 6;
/// Time between two looks at how many are still open.
pub const LEAVING_PAUSE: Duration = Duration::from_millis(1);
/// Connections of one peer that are looked at for one that can go. The others are looked at by later newcomers.
pub const LOOKS_PER_PEER_MAX: usize = 64;
/// Peers whose connections are looked at, from the one with the most connections down.
pub const PEERS_LOOKED_AT_MAX: usize = 4;
/// Pause between two log lines about connections that were refused or ended early.
pub const LOG_PAUSE: Duration = Duration::from_secs(1);

/// Silence after which TCP asks whether the client's host is still there.
pub const KEEPALIVE_IDLE: Duration = Duration::from_mins(1);
/// Pause between two such questions.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Unanswered questions after which the connection is gone.
pub const KEEPALIVE_COUNT: u32 = 6;
/// Bytes that the client's host acknowledges no sooner than this end the connection.
pub const UNACKNOWLEDGED_MS_MAX: u32 = 120_000;

/// Default of `--http-header-timeout`.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Default of `--http-idle-timeout`. Triton's clients keep their connections for later requests.
pub const IDLE_TIMEOUT: Duration = Duration::from_mins(15);
/// Default of `--body-progress-timeout`.
pub const BODY_TIMEOUT: Duration = Duration::from_mins(1);
/// Default of `--write-timeout`.
pub const WRITE_TIMEOUT: Duration = Duration::from_mins(1);
/// Bytes of a body that must come for each second of `--body-progress-timeout`: a client with a modem sends more.
pub const BODY_BYTES_PER_SECOND_MIN: u64 = 1024;
/// So often within a time limit it is looked whether the limit has passed. A client is ended up to one such part late.
pub const LOOKS_PER_LIMIT: u32 = 4;
/// Looks do not come quicker than this, whatever the limit.
pub const LOOK_PAUSE_MIN: Duration = Duration::from_millis(1);
/// While the server stops, a client that takes nothing of its answer for this long loses it.
pub const STOPPING_WRITE_TIMEOUT: Duration = Duration::from_secs(1);

const _: () = assert!(CONNECTIONS_MIN >= 2 * PLACES_PER_OTHERS_RESERVE);
const _: () = assert!(CONNECTIONS_MIN >= PLACES_PER_OPERATORS_RESERVE);
const _: () = assert!(CONNECTIONS_MIN >= PLACES_PER_LINGERING && 2 * PLACES_PER_LEAVING < PLACES_PER_LINGERING);
