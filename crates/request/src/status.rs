//! What kinds of failure does a client see?

use nerite_memory::NoMemory;

/// The kinds of failure of Triton's C API; `api` maps each to an HTTP and a gRPC code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// Nothing more is known.
    Unknown,
    /// A fault of the server or of a model.
    Internal,
    /// A model, version or region that does not exist.
    NotFound,
    /// A fault of the client.
    InvalidArg,
    /// Not possible now: stopping, loading, full or too late.
    Unavailable,
    /// Not possible with this server, model or build.
    Unsupported,
    /// The name is taken.
    AlreadyExists,
    /// The client went away or cancelled the request.
    Cancelled,
    /// The client brought no token, or one that the server does not know.
    Unauthenticated,
    /// The client's token does not allow the call.
    Denied,
    /// The client's quota is used up for now.
    Exhausted,
}

impl Code {
    /// The word that Triton prints for it, as in `Invalid argument: …`.
    pub fn name(self) -> &'static str {
        match self {
            Code::Unknown => "Unknown",
            Code::Internal => "Internal",
            Code::NotFound => "Not found",
            Code::InvalidArg => "Invalid argument",
            Code::Unavailable => "Unavailable",
            Code::Unsupported => "Unsupported",
            Code::AlreadyExists => "Already exists",
            Code::Cancelled => "Cancelled",
            Code::Unauthenticated => "Unauthenticated",
            Code::Denied => "Permission denied",
            Code::Exhausted => "Resource exhausted",
        }
    }
}

/// A failure as a client gets it: its kind and one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Status {
    /// Its kind.
    pub code: Code,
    /// What happened, with the numbers and the cure.
    pub message: String,
}

impl Status {
    /// A failure of this kind.
    pub fn new(code: Code, message: impl Into<String>) -> Status {
        Status { code, message: message.into() }
    }

    /// [`Code::InvalidArg`].
    pub fn invalid(message: impl Into<String>) -> Status {
        Status::new(Code::InvalidArg, message)
    }

    /// [`Code::Internal`].
    pub fn internal(message: impl Into<String>) -> Status {
        Status::new(Code::Internal, message)
    }

    /// [`Code::NotFound`].
    pub fn not_found(message: impl Into<String>) -> Status {
        Status::new(Code::NotFound, message)
    }

    /// [`Code::Unavailable`].
    pub fn unavailable(message: impl Into<String>) -> Status {
        Status::new(Code::Unavailable, message)
    }

    /// A request's timeout is over, in the queue or in a run. The text is Triton's.
    pub fn timed_out() -> Status {
        Status::unavailable("Request timeout expired")
    }

    /// The system has no memory for `what`, whose size the client chose.
    pub fn no_memory(what: impl std::fmt::Display, refused: NoMemory) -> Status {
        Status::unavailable(format!(
            "the server has no memory for {what}: {refused}; try again when it has less to do, send less at once, or send \
             tensors through shared memory"
        ))
    }

    /// A run of a model needs more memory than it may have. [`Code::InvalidArg`] if it would also need it without other runs, otherwise
    /// [`Code::Unavailable`].
    pub fn no_memory_to_compute(refused: NoMemory) -> Status {
        if refused.is_of_one_run() {
            return Status::invalid(format!(
                "a run of a model has no memory for what the model computes from this request: {refused}; send a smaller request"
            ));
        }
        Status::unavailable(format!(
            "the server has no memory for what the model computes from this request: {refused}; send a smaller request, or try \
             again when the server has less to do"
        ))
    }

    /// [`Code::Unsupported`].
    pub fn unsupported(message: impl Into<String>) -> Status {
        Status::new(Code::Unsupported, message)
    }
}
