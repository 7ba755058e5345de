//! How large may a model's directory be, how many folders are watched, and how deep may ensembles nest?

/// Bytes of a `config.pbtxt`. The largest known ones have a few tens of KiB.
pub const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// Bytes of the label files of a model: a million labels of 64 bytes.
pub const LABELS_BYTES_MAX: u64 = 64 << 20;

/// Labels in them. Each takes some memory beside its text.
pub const LABELS_MAX: usize = 1 << 20;

/// Depth of folders below a model's directory. It also ends a cycle of links.
pub const MODEL_DEPTH_MAX: usize = 32;

/// Files and folders below a model's directory.
pub const MODEL_ENTRIES_MAX: usize = 100_000;

/// Folders of all repositories that are watched for changes. The kernel takes about 1 KiB for each.
pub const WATCHED_FOLDERS_MAX: usize = 50_000;

/// Folders outside of the repositories that are watched because models import files in them.
pub const IMPORTED_FOLDERS_MAX: usize = 4096;

/// The most ensembles in a row, each made of the next. Each takes some KiB of a thread's stack while a request runs: more than 200 fit into 2 MiB.
pub const ENSEMBLES_NESTED_MAX: usize = 32;

/// Bytes of the reason of a failed load that an error names to clients. The log has the whole reason.
pub const FAILURE_BYTES_MAX: usize = 1024;

/// Versions of a model that an error names.
pub const VERSIONS_NAMED_MAX: usize = 16;

/// Files in one load request.
pub use nerite_request::limits::LOAD_FILES_MAX as SENT_FILES_MAX;

const _: () = assert!(IMPORTED_FOLDERS_MAX <= WATCHED_FOLDERS_MAX);
const _: () = assert!(SENT_FILES_MAX <= MODEL_ENTRIES_MAX);
