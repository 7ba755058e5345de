//! What are the limits of the page?

/// The most model versions that are listed.
pub const MODELS_MAX: usize = 2000;
/// The most regions that are listed: of regions over HTTP and gRPC, and of regions of sessions.
pub const REGIONS_MAX: usize = 500;
/// The most leases that are listed.
pub const LEASES_MAX: usize = 500;
/// The most traces that are kept for the page to fetch.
pub const TRACES_MAX: usize = 64;
/// The most of these traces for one peer.
pub const TRACES_PER_PEER_MAX: usize = 8;
/// The most bytes of all kept traces.
pub const TRACES_BYTES_MAX: usize = 4 << 20;
/// The most notes of a trace that are sent.
pub const NOTES_MAX: usize = 2000;

const _: () = assert!(TRACES_PER_PEER_MAX < TRACES_MAX);
