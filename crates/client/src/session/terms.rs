//! What does a server report about a session?

/// The server's answer to Hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionTerms {
    /// The server's name.
    pub server_name: String,
    /// The server's version.
    pub server_version: String,
    /// The id of the server process, as in its metadata. Empty if the server does not send one.
    pub server_id: String,
    /// The size of the largest packet. Inline tensors must fit into it together with the rest of the message.
    pub packet_bytes_max: u64,
    /// Bytes of memory that this session may borrow.
    pub session_bytes_max: u64,
}

/// The memory that a session uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionUse {
    /// Leases that count against the session, lent and idle.
    pub leases: u64,
    /// Bytes of these leases.
    pub bytes: u64,
}
