//! What are the limits of an interpreter's output and of packed environments?

use std::time::Duration;

/// The most bytes that are kept of the output of an interpreter whose versions are queried.
pub const SAID_BYTES_MAX: usize = 64 << 10;
/// The most entries of a packed environment. The largest ones in use have a quarter of that.
pub const ARCHIVE_ENTRIES_MAX: u64 = 1 << 20;
/// The most bytes of an unpacked environment. A larger one should be installed instead.
pub const ARCHIVE_BYTES_MAX: u64 = 64 << 30;
/// The most bytes between two entries of a packed environment: the name, which is kept in memory.
pub const ARCHIVE_NAMES_BYTES_MAX: u64 = 1 << 20;
/// The most bytes of one name in a packed environment. It is Linux's limit of a path.
pub const ARCHIVE_NAME_BYTES_MAX: usize = 4096;
/// The deepest path in a packed environment, because removing it takes one descriptor for each directory.
pub const ARCHIVE_DEPTH_MAX: usize = 128;
/// The longest limit of the time of `execute`. A longer one would be no limit.
pub const EXECUTE_MAX: Duration = Duration::from_hours(24);
/// How long a model that came with a load request may take to initialize, to complete its configuration and to finalize, unless the operator sets it.
pub const SENT_PHASE_MAX: Duration = Duration::from_secs(30);
/// How long an interpreter may take to say its versions, and a template to fork.
pub const ANSWER_MAX: Duration = Duration::from_secs(30);
