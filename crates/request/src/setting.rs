//! Which settings can a client read and change while the server runs?

use std::io::{self, Write};
use std::sync::Arc;

use nerite_budget::PeerCharge;

use crate::Cancel;

/// The names of the log's settings, as clients of all protocols write them.
pub mod log_names {
    /// The log's file.
    pub const FILE: &str = "log_file";
    /// Whether informational lines are written.
    pub const INFO: &str = "log_info";
    /// Whether warnings are written.
    pub const WARNING: &str = "log_warning";
    /// Whether errors are written.
    pub const ERROR: &str = "log_error";
    /// Verbosity.
    pub const VERBOSE_LEVEL: &str = "log_verbose_level";
    /// The form of a line.
    pub const FORMAT: &str = "log_format";
}

/// What the log shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// The log's file; empty for the standard streams. Cannot be changed by a client.
    pub file: String,
    /// Whether informational lines are written.
    pub info: bool,
    /// Whether warnings are written.
    pub warning: bool,
    /// Whether errors are written.
    pub error: bool,
    /// Verbosity; 0 for none.
    pub verbose_level: u32,
    /// `default`, `ISO8601` or `json`.
    pub format: String,
}

/// A change of the log settings. Settings that are `None` do not change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogChange {
    /// A new file: always refused.
    pub file: Option<String>,
    /// Whether informational lines are written.
    pub info: Option<bool>,
    /// Whether warnings are written.
    pub warning: Option<bool>,
    /// Whether errors are written.
    pub error: Option<bool>,
    /// Verbosity.
    pub verbose_level: Option<u32>,
    /// `default`, `ISO8601` or `json`.
    pub format: Option<String>,
}

/// Trace settings of the server or of one model: name → values, in Triton's order.
pub type TraceSettings = Vec<(String, Vec<String>)>;

/// A change of trace settings: name → new values, or `None` to return to the default.
pub type TraceChange = Vec<(String, Option<Vec<String>>)>;

/// The content of a file that a load request brings, in memory or elsewhere, until it is written.
pub trait FileContent: std::fmt::Debug + Send + Sync {
    /// Writes all of it. Called on a thread that may block.
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()>;
}

impl<B: AsRef<[u8]> + std::fmt::Debug + Send + Sync> FileContent for B {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(self.as_ref())
    }
}

/// What a load request brings beside the model's name.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// A model configuration as JSON in place of `config.pbtxt`.
    pub config: Option<String>,
    /// Files by path below the model's directory, in place of the repository's.
    pub files: Vec<(String, Arc<dyn FileContent>)>,
    /// The charge to the client for both. It is kept as long as the model is served with them.
    pub charge: Option<Arc<PeerCharge>>,
    /// Set when the client does not wait for the load any more.
    pub gone: Cancel,
}
