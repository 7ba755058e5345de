//! Why is a lease refused?

use thiserror::Error;

use super::limits::{LEASES_MAX, LEASES_PER_SESSION_MAX};

/// The kind of a refusal. `api` maps each kind to the codes of its protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseErrorKind {
    /// No lease can have this size.
    Invalid,
    /// Too many leases or bytes are in use.
    Full,
    /// The session has no such lease.
    Missing,
    /// The client no longer waits for the output.
    Cancelled,
    /// The system refused the memory.
    Internal,
}

/// Why a lease was not lent, or not returned.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LeaseError {
    /// A lease of 0 bytes.
    #[error("a lease has at least one byte")]
    Empty,
    /// More bytes than a session may have.
    #[error("a lease of {bytes} bytes is larger than a session may have, {bytes_max} (--session-max-bytes)")]
    Large {
        /// Requested bytes.
        bytes: u64,
        /// The most bytes that a session may have.
        bytes_max: u64,
    },
    /// The session has reached its limit.
    #[error(
        "a lease of {bytes} bytes does not fit: the session has {used} of {bytes_max} in {count} leases of \
         {LEASES_PER_SESSION_MAX}; return some or raise --session-max-bytes"
    )]
    SessionFull {
        /// Requested bytes.
        bytes: u64,
        /// Bytes of the session's leases.
        used: u64,
        /// Number of the session's leases.
        count: u64,
        /// The most bytes that a session may have.
        bytes_max: u64,
    },
    /// All sessions together have reached the limit.
    #[error(
        "a lease of {bytes} bytes does not fit: all sessions together have {used} of {bytes_max} in {count} leases of \
         {LEASES_MAX}; try again or raise --lease-max-bytes"
    )]
    PoolsFull {
        /// Requested bytes.
        bytes: u64,
        /// Bytes of all leases, lent and idle.
        used: u64,
        /// Number of all leases.
        count: u64,
        /// The most bytes of all leases.
        bytes_max: u64,
    },
    /// The name is not that of a lease that is lent to this session.
    #[error("no lease of that name is lent to this session")]
    Unknown,
    /// The session has ended.
    #[error("the session has ended")]
    Closed,
    /// The client abandoned the outputs of the request with this tag.
    #[error("the session has abandoned this request's outputs")]
    Abandoned,
    /// The system refused the memory.
    #[error("no memory for a lease of {bytes} bytes: {cause}")]
    System {
        /// Requested bytes.
        bytes: u64,
        /// The system's error text.
        cause: String,
    },
}

impl LeaseError {
    /// The kind of this error.
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
