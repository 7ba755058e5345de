//! How much does the page tell and keep?

/// Model versions that are listed.
pub const MODELS_MAX: usize = 2000;
/// Regions that are listed: of those over HTTP and gRPC, and of those of sessions.
pub const REGIONS_MAX: usize = 500;
/// Leases that are listed.
pub const LEASES_MAX: usize = 500;
/// Traces that are kept for the page to fetch them.
pub const TRACES_MAX: usize = 64;
/// Of these, traces of one peer.
pub const TRACES_PER_PEER_MAX: usize = 8;
/// Bytes that all of them hold.
pub const TRACES_BYTES_MAX: usize = 4 << 20;
/// Notes of a trace that are told.
pub const NOTES_MAX: usize = 2000;
/// Characters of a host's name that a refusal quotes.
pub const HOST_CHARS_MAX: usize = 100;

const _: () = assert!(TRACES_PER_PEER_MAX < TRACES_MAX);
