//! What does a server say of a session?

/// The server's answer to Hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionTerms {
    /// The server's name.
    pub server_name: String,
    /// The server's version.
    pub server_version: String,
    /// The id of the server process, as in its metadata; empty if the server does not send one.
    pub server_id: String,
    /// The largest packet; inline tensors must fit with the rest of the message.
    pub packet_bytes_max: u64,
    /// The memory that this session may borrow.
    pub session_bytes_max: u64,
}

/// The present usage of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionUse {
    /// Leases that count against it, lent and idle.
    pub leases: u64,
    /// Their bytes.
    pub bytes: u64,
}
