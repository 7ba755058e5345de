//! What can go wrong between a caller and a server?

use nerite_memory::NoMemory;
pub use nerite_request::Code;
use nerite_request::Status;
use nerite_tensor::{DataType, ShapeError};

use crate::HandshakeFault;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address of the server is not valid.
    #[error(
        "endpoint '{endpoint}' is not understood: {reason}; write http://host:port, https://host:port or unix:/path"
    )]
    Endpoint {
        /// The address as given.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No server answers at the address.
    #[error("cannot connect to {endpoint}: {reason}")]
    Connect {
        /// The address as given.
        endpoint: String,
        /// The system's error text.
        reason: String,
    },
    /// A process that this program does not trust listens at the session socket. Nothing was sent to it.
    #[error("session socket {endpoint} is not used: {reason}; {cure}")]
    Untrusted {
        /// The socket's path.
        endpoint: String,
        /// What is wrong.
        reason: String,
        /// What to do.
        cure: String,
    },
    /// The connection broke before an answer arrived. It is unknown whether the server has carried out the request.
    #[error("connection to {endpoint} broke: {reason}")]
    Broken {
        /// The address as given.
        endpoint: String,
        /// The connection's error text.
        reason: String,
    },
    /// The client and the server do not agree on TLS: on whether they use it, or on a certificate.
    #[error("cannot connect to {endpoint}: {fault}")]
    Handshake {
        /// The address as given.
        endpoint: String,
        /// What they do not agree on.
        fault: HandshakeFault,
    },
    /// The answer did not arrive in time. It is unknown whether the server has carried out the request.
    #[error("no answer from {endpoint} within {limit_ms} ms; ClientOptions::request_max allows more")]
    TimedOut {
        /// The address as given.
        endpoint: String,
        /// The limit of one call.
        limit_ms: u128,
    },
    /// A call of [`crate::blocking`] cannot wait here.
    #[error("cannot wait: {0}")]
    Blocking(String),
    /// The certificates cannot be used.
    #[error("TLS: {what}: {reason}")]
    Tls {
        /// The certificates, or the part of them that cannot be used.
        what: String,
        /// What is wrong.
        reason: String,
    },
    /// The server refused the call. The text is the server's.
    #[error("{0}")]
    Refused(Status),
    /// The server's answer does not follow the protocol, or cannot be used.
    #[error("answer not understood: {0}")]
    Answer(String),
    /// The shape is not a valid shape of a tensor.
    #[error("tensor '{name}': {source}")]
    Shape {
        /// The tensor's name.
        name: String,
        /// What is wrong with the shape.
        source: ShapeError,
    },
    /// There is no memory for the tensor.
    #[error("tensor '{name}': {source}")]
    Memory {
        /// The tensor's name.
        name: String,
        /// How much memory was requested.
        source: NoMemory,
    },
    /// The data does not have the size that follows from datatype and shape.
    #[error("tensor '{name}' of this shape has {need} bytes, its data has {have}")]
    Size {
        /// The tensor's name.
        name: String,
        /// Bytes that follow from datatype and shape.
        need: usize,
        /// Bytes that the data has.
        have: usize,
    },
    /// The array has another shape than the tensor.
    #[error("tensor '{name}' has the shape {need:?}, the array {have:?}")]
    ArrayShape {
        /// The tensor's name.
        name: String,
        /// Its dimensions.
        need: Vec<usize>,
        /// The array's dimensions.
        have: Vec<usize>,
    },
    /// A BYTES tensor has another number of elements than its shape, or its elements are not encoded correctly.
    #[error("tensor '{name}': {reason}")]
    Strings {
        /// The tensor's name.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// The elements are not of the requested type.
    #[error("tensor '{name}' holds {held}, asked for as {requested}")]
    Datatype {
        /// The tensor's name.
        name: String,
        /// Its datatype.
        held: DataType,
        /// The requested datatype.
        requested: DataType,
    },
    /// The answer has no such output.
    #[error("no output '{name}' in the answer, which has [{have}]")]
    NoOutput {
        /// The requested name.
        name: String,
        /// The outputs that the answer has.
        have: String,
    },
    /// The output lies in a region, not in the answer.
    #[error("output '{name}' was placed in a shared memory region; read it there")]
    InSharedMemory {
        /// The output's name.
        name: String,
    },
    /// A region could not be made, or is too short for the requested window.
    #[error("region '{key}': {reason}")]
    Region {
        /// The region's key.
        key: String,
        /// What is wrong.
        reason: String,
    },
    /// The session cannot make this call.
    #[error("session: {0}")]
    Session(String),
}

impl Error {
    /// The kind of refusal, if the server refused.
    pub fn code(&self) -> Option<Code> {
        match self {
            Error::Refused(status) => Some(status.code),
            _ => None,
        }
    }
}
