//! Which limits do connections have, in number and in time?

use std::time::Duration;

/// Connections that may wait to be accepted, if the system allows as many (`net.core.somaxconn`). The kernel drops those beyond, and
/// their clients try again after a second.
pub const BACKLOG: u32 = 4096;
/// Pause after a failed accept. The usual cause is that no descriptor is left.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The most connections, even if the limit on open files allows more. An idle one takes up to about 20 KiB.
pub const CONNECTIONS_MAX: usize = 16_384;
/// The fewest connections. With fewer, the reserves would be empty.
pub const CONNECTIONS_MIN: usize = 16;
/// One descriptor in this many is not used for connections. It is reserved for regions, leases, sessions, models and files.
pub const DESCRIPTORS_PER_RESERVED: u64 = 4;
/// One connection in this many is reserved for operators, but not more than [`OPERATOR_RESERVE_MAX`].
pub const CONNECTIONS_PER_OPERATOR_RESERVE: usize = 16;
/// Operators need few connections: to read the status, to unload models, to stop the server.
pub const OPERATOR_RESERVE_MAX: usize = 64;
/// One connection in this many is reserved for clients that are not operators.
pub const CONNECTIONS_PER_OTHERS_RESERVE: usize = 8;
/// Evicted connections may stay open for a moment, so that their clients see a graceful end. If there are more of them than one in this
/// many connections, further ones are closed at once.
pub const CONNECTIONS_PER_LINGERING: usize = 16;
/// No connection is accepted while this fraction (1/n) of the limit on connections is evicted and still open, because each of these has a descriptor.
pub const CONNECTIONS_PER_CLOSING: usize = 6;
/// Time between two checks of how many are still open.
pub const CLOSING_PAUSE: Duration = Duration::from_millis(1);
/// Connections of one peer that one search for an idle connection checks. Later searches check the others.
pub const CHECKS_PER_PEER_MAX: usize = 64;
/// Peers whose connections one search checks, beginning with the peer that has the most.
pub const PEERS_CHECKED_MAX: usize = 4;
/// Pause between two log lines about connections that were refused or ended early.
pub const LOG_PAUSE: Duration = Duration::from_secs(1);

/// The most threads that close Unix sockets where a client can make a close take long. Each peer has one at a time, so closes of other peers wait only if
/// more peers than this do that.
pub const CLOSERS_MAX: usize = 64;
/// Further such threads for the sockets of operators: root, and the server's user.
pub const CLOSERS_OPERATOR_RESERVE: usize = 2;
/// Such a thread ends when nothing was to be closed for this long.
pub const CLOSER_IDLE: Duration = Duration::from_secs(5);
/// The least limit on evicted connections whose sockets wait for such threads. The limit is otherwise one in [`CONNECTIONS_PER_LINGERING`] of all
/// connections.
pub const CLOSING_ASIDE_MIN: usize = 16;
/// One peer may have one in this many of the evicted connections whose sockets wait for such threads.
pub const PEERS_PER_CLOSING_ASIDE: usize = 4;
/// The most connections at Unix sockets that were rejected and wait to be closed. They do not count for the limits on connections, and each has a
/// descriptor.
pub const REJECTED_MAX: usize = 64;
/// The most bytes that one call reads from a Unix socket that must be peeked first. The kernel copies such bytes twice. With this size they are still in
/// the processor's cache at the second copy.
pub const PEEKED_BYTES_MAX: usize = 64 << 10;

/// Pause between two checks of whether the certificates of a port changed on disk.
pub const CERTIFICATES_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a connection waits for such a check, which may hang if the files are on a mount that does not answer. After that the connection gets the
/// certificate in use.
pub const CERTIFICATES_WAIT_MAX: Duration = Duration::from_millis(100);
/// The most bytes of a file of certificates, or of a key.
pub const CERTIFICATES_BYTES_MAX: u64 = 4 << 20;
/// Time that a client has for a TLS handshake, unless the operator says otherwise.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(20);

/// The most bytes of a header of the PROXY protocol. Each TCP segment may have as many, so a proxy can send such a header at once.
pub const PROXY_HEADER_BYTES_MAX: usize = 536;

/// Time without traffic after which TCP probes whether the client's host still answers.
pub const KEEPALIVE_IDLE: Duration = Duration::from_mins(1);
/// Pause between two probes.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Unanswered probes after which TCP closes the connection.
pub const KEEPALIVE_COUNT: u32 = 6;
/// TCP closes the connection if sent bytes stay unacknowledged for this long.
pub const UNACKNOWLEDGED_MS_MAX: u32 = 120_000;

/// Default of `--http-header-timeout`.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Default of `--http-idle-timeout`. Triton's clients keep their connections for later requests.
pub const IDLE_TIMEOUT: Duration = Duration::from_mins(15);
/// Default of `--body-progress-timeout`.
pub const BODY_TIMEOUT: Duration = Duration::from_mins(1);
/// Default of `--write-timeout`.
pub const WRITE_TIMEOUT: Duration = Duration::from_mins(1);
/// Bytes of a body that must arrive for each second of `--body-progress-timeout`. Even a slow line carries more.
pub const BODY_BYTES_PER_SECOND_MIN: u64 = 1024;
/// How often progress is checked within a time limit. So a connection is ended up to a quarter of the limit late.
pub const CHECKS_PER_LIMIT: u32 = 4;
/// The least time between two checks, whatever the limit.
pub const CHECK_PAUSE_MIN: Duration = Duration::from_millis(1);
/// While the server stops, a connection is ended if its client reads nothing of an answer for this long.
pub const STOPPING_WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// The front ends that are closed last begin to close this long before the deadline, even if the first ones are still open. This is longer than
/// [`STOPPING_WRITE_TIMEOUT`], whose end is noticed late ([`CHECKS_PER_LIMIT`]).
pub const LAST_CLOSING_MIN: Duration = Duration::from_millis(1300);

const _: () = assert!(CONNECTIONS_MIN >= 2 * CONNECTIONS_PER_OTHERS_RESERVE);
const _: () = assert!(CONNECTIONS_MIN >= CONNECTIONS_PER_OPERATOR_RESERVE);
const _: () = {
    let write_ms = STOPPING_WRITE_TIMEOUT.as_millis();
    assert!(LAST_CLOSING_MIN.as_millis() > write_ms + write_ms / CHECKS_PER_LIMIT as u128);
};
const _: () =
    assert!(CONNECTIONS_MIN >= CONNECTIONS_PER_LINGERING && 2 * CONNECTIONS_PER_CLOSING < CONNECTIONS_PER_LINGERING);
