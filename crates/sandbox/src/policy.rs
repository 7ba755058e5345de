//! What may one process do?

use std::ffi::OsString;
use std::path::PathBuf;

/// What a process may still do. Everything else is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    /// Whether it runs even if the kernel cannot enforce all of it.
    pub(crate) is_best_effort: bool,
    /// Files and directories that it may read and execute. Missing ones are ignored.
    pub(crate) read: Vec<PathBuf>,
    /// Directories that the server made, in which it may write.
    pub(crate) write: Vec<PathBuf>,
    /// Paths that the model named, without links. It may read there, and write if the model asked for that.
    pub(crate) named: Vec<Named>,
    /// Whether it may make sockets.
    pub(crate) has_network: bool,
    /// Bytes of private memory that each of its processes may have.
    pub(crate) memory_bytes: Option<u64>,
    /// Bytes of all memory that the kernel counts for its processes together.
    pub(crate) group_memory_bytes: Option<u64>,
    /// The control group below which its processes get their own group.
    pub(crate) group: Option<PathBuf>,
    /// Bytes of a file that it writes.
    pub(crate) file_bytes: Option<u64>,
    /// How many processes and threads it may have.
    pub(crate) processes: Processes,
    /// The first argument that its program gets, which `ps` shows. `None` for the program's path.
    pub(crate) arg0: Option<OsString>,
    /// Variables of its environment that differ from the server's; `None` unsets one.
    pub(crate) variables: Vec<(OsString, Option<OsString>)>,
}

/// A place that a model asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) path: PathBuf,
    pub(crate) is_writable: bool,
}

/// How many processes a model's process may start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Processes {
    /// No other process, and any number of threads.
    #[default]
    Itself,
    /// This many processes and threads together.
    AtMost(u64),
    /// As many as the server may.
    Any,
}
