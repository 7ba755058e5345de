//! How large are packets, and how many returned leases wait for the next one?

/// The most descriptors in a packet, and the size of the largest packet.
pub(super) use nerite_wire::proto::session::{DESCRIPTORS_MAX, PACKET_BYTES_MAX};

/// The most returned leases that wait for the next message. If there are more, they are sent at once.
pub(super) const RETURNS_HELD_MAX: usize = 8;

/// The most bytes of the returned leases that wait.
pub(super) const RETURNS_HELD_BYTES_MAX: usize = 1 << 20;
