//! Where do connections come from?
//!
//! TCP ports and Unix sockets, bound in the same way for every front end. This crate knows no protocol.
//!
//! ```
//! use nerite_listen::{Endpoint, bind};
//!
//! let listener = bind(&Endpoint::Tcp { address: "127.0.0.1".into(), port: 0, reuse_port: false })?;
//! assert!(listener.address().is_some_and(|address| address.port() != 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod accept;
mod behind_proxy;
mod body_read_limit;
mod certificate_ends;
mod closers;
mod closing;
mod connection_monitor;
mod descriptors_passed;
mod forward;
pub mod limits;
mod listener;
mod local_addresses;
mod local_stream;
mod memory_limited_stream;
mod netlink;
mod peer;
mod peers;
mod progress;
mod proxy_header;
mod service;
mod sock_diag;
mod stall;
mod stop_signal;
mod timed;
mod tls;
mod trusted_proxies;
mod unix;
mod unix_socket;

pub use body_read_limit::{BodyReadLimit, shed, until_shed};
pub use closers::SocketEntry;
pub use closing::{Cut, NamedService, close_all};
pub use connection_monitor::{
    ConnectionMonitor, ConnectionRules, EndReason, FutureConnection, Served, monitor_connection,
};
pub use descriptors_passed::{DescriptorsPassed, peek};
pub use limits::{BACKLOG, HANDSHAKE_MAX};
pub use listener::{BindError, Connection, Endpoint, Listener, Stream, bind};
pub use local_stream::{LocalStream, watch};
pub use memory_limited_stream::MemoryLimitedStream;
pub use nerite_shm::PeerCredentials;
pub use peers::{AdmissionRefused, ConnectionCounts, ConnectionLimits, ConnectionPermit, Peers};
pub use progress::{Awaited, Progress, Snapshot};
pub use service::{Open, Service};
pub use stall::{Overdue, StallTimer, TimeLimits, sleep_or_forever};
pub use stop_signal::StopSignal;
pub use timed::Timed;
pub use tls::{ApplicationProtocol, Tls, TlsError, TlsFiles};
pub use trusted_proxies::{Proxies, Subnet, SubnetError, TrustedProxies};
pub use unix::{OWNER_ONLY, SocketFile};
pub use unix_socket::UnixSocket;
