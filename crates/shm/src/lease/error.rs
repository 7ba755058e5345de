//! Why is a lease not lent?

use thiserror::Error;

use super::limits::{LEASES_MAX, LEASES_PER_SESSION_MAX};

/// What sort of refusal it is; `api` turns each into the codes of its protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseErrorKind {
    /// No lease can be that large, or that small.
    Invalid,
    /// Too much is lent now.
    Full,
    /// The session has no such lease.
    Missing,
    /// Nobody waits for what would lie in it.
    Cancelled,
    /// The system gave none.
    Internal,
}

/// A lease that was not lent, or not taken back.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LeaseError {
    /// A lease of no bytes.
    #[error("a lease has at least one byte")]
    Empty,
    /// More than the session could ever have.
    #[error("a lease of {bytes} bytes is larger than a session may have, {bytes_max} (--session-max-bytes)")]
    Large {
        /// Bytes asked for.
        bytes: u64,
        /// Bytes a session may have.
        bytes_max: u64,
    },
    /// The session has its share.
    #[error(
        "a lease of {bytes} bytes does not fit: the session has {used} of {bytes_max} in {count} leases of \
         {LEASES_PER_SESSION_MAX}; return some or raise --session-max-bytes"
    )]
    SessionFull {
        /// Bytes asked for.
        bytes: u64,
        /// Bytes the session has.
        used: u64,
        /// Leases the session has.
        count: u64,
        /// Bytes a session may have.
        bytes_max: u64,
    },
    /// All sessions together have what there is.
    #[error(
        "a lease of {bytes} bytes does not fit: all sessions together have {used} of {bytes_max} in {count} leases of \
         {LEASES_MAX}; try again or raise --lease-max-bytes"
    )]
    PoolsFull {
        /// Bytes asked for.
        bytes: u64,
        /// Bytes that are lent or idle.
        used: u64,
        /// Leases there are.
        count: u64,
        /// Bytes that may be.
        bytes_max: u64,
    },
    /// A name that this session was not lent, or has returned.
    #[error("no lease of that name is lent to this session")]
    Unknown,
    /// The session has ended.
    #[error("the session has ended")]
    Closed,
    /// The client has said that it waits for no output of this tag.
    #[error("the session has abandoned this request's outputs")]
    Abandoned,
    /// The system refused.
    #[error("no memory for a lease of {bytes} bytes: {cause}")]
    System {
        /// Bytes asked for.
        bytes: u64,
        /// The system's words.
        cause: String,
    },
}

impl LeaseError {
    /// What sort of refusal it is.
    pub fn kind(&self) -> LeaseErrorKind {
        match self {
            LeaseError::Empty | LeaseError::Large { .. } => LeaseErrorKind::Invalid,
            LeaseError::SessionFull { .. } | LeaseError::PoolsFull { .. } | LeaseError::Closed => LeaseErrorKind::Full,
            LeaseError::Unknown => LeaseErrorKind::Missing,
            LeaseError::Abandoned => LeaseErrorKind::Cancelled,
            LeaseError::System { .. } => LeaseErrorKind::Internal,
        }
    }
}
