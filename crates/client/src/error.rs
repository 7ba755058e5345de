//! What can go wrong between a caller and a server?

use nerite_memory::NoMemory;
pub use nerite_request::Code;
use nerite_request::Status;
use nerite_tensor::{DataType, ShapeError};

/// Why a call gave no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be one of a server.
    #[error(
        "endpoint '{endpoint}' is not understood: {reason}; write http://host:port, https://host:port or unix:/path"
    )]
    Endpoint {
        /// The address as given.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Nobody answers at the address.
    #[error("cannot connect to {endpoint}: {reason}")]
    Connect {
        /// The address as given.
        endpoint: String,
        /// What the system says.
        reason: String,
    },
    /// A process that this program does not trust listens at the session socket. Nothing was sent.
    #[error("session socket {endpoint} is not used: {reason}; {cure}")]
    Untrusted {
        /// The socket's path.
        endpoint: String,
        /// What is wrong.
        reason: String,
        /// What to do.
        cure: String,
    },
    /// The connection broke before an answer came. Whether the server has carried out the request is unknown.
    #[error("connection to {endpoint} broke: {reason}")]
    Broken {
        /// The address as given.
        endpoint: String,
        /// What the connection says.
        reason: String,
    },
    /// The answer was not there in time. Whether the server has carried out the request is unknown.
    #[error("no answer from {endpoint} within {limit_ms} ms; ClientOptions::request_max allows more")]
    TimedOut {
        /// The address as given.
        endpoint: String,
        /// The limit of one call.
        limit_ms: u128,
    },
    /// A call of [`crate::blocking`] cannot be waited for here.
    #[error("cannot wait: {0}")]
    Blocking(String),
    /// Certificates that cannot be used.
    #[error("TLS: {what}: {reason}")]
    Tls {
        /// The certificates, or the part of them that cannot be used.
        what: String,
        /// What is wrong.
        reason: String,
    },
    /// The server refused, in its own words.
    #[error("{0}")]
    Refused(Status),
    /// The server's answer is not one of this protocol.
    #[error("answer not understood: {0}")]
    Answer(String),
    /// The shape cannot be one of a tensor.
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
        /// How much was asked for.
        source: NoMemory,
    },
    /// The data is not as long as datatype and shape say.
    #[error("tensor '{name}' of this shape has {need} bytes, its data has {have}")]
    Size {
        /// The tensor's name.
        name: String,
        /// Bytes by datatype and shape.
        need: usize,
        /// Bytes given.
        have: usize,
    },
    /// An array is given for a tensor of another shape.
    #[error("tensor '{name}' has the shape {need:?}, the array {have:?}")]
    ArrayShape {
        /// The tensor's name.
        name: String,
        /// Its dimensions.
        need: Vec<usize>,
        /// The array's.
        have: Vec<usize>,
    },
    /// A BYTES tensor whose element count differs from its shape, or whose elements are not encoded correctly.
    #[error("tensor '{name}': {reason}")]
    Strings {
        /// The tensor's name.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// The elements are not of the type asked for.
    #[error("tensor '{name}' holds {held}, asked for as {requested}")]
    Datatype {
        /// The tensor's name.
        name: String,
        /// Its datatype.
        held: DataType,
        /// The datatype asked for.
        requested: DataType,
    },
    /// The answer has no such output.
    #[error("no output '{name}' in the answer, which has [{have}]")]
    NoOutput {
        /// The name asked for.
        name: String,
        /// The outputs there are.
        have: String,
    },
    /// The output lies in a region, not in the answer.
    #[error("output '{name}' was placed in a shared memory region; read it there")]
    InSharedMemory {
        /// The output's name.
        name: String,
    },
    /// A region could not be made, or does not reach as far as asked.
    #[error("region '{key}': {reason}")]
    Region {
        /// The region's key.
        key: String,
        /// What is wrong.
        reason: String,
    },
    /// A call that a session cannot make.
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
