//! How much does a session hold back?

/// The largest packet a server sends.
pub(super) use nerite_wire::proto::session::{DESCRIPTORS_MAX, PACKET_BYTES_MAX};

/// The most returned leases that wait for the next message. More are sent at once.
pub(super) const RETURNS_HELD_MAX: usize = 8;

/// Their bytes.
pub(super) const RETURNS_HELD_BYTES_MAX: usize = 1 << 20;
