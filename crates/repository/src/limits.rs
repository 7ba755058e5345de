//! How large may a model's directory be?

/// Bytes of a `config.pbtxt`; the largest known ones have some tens of KiB.
pub const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// Bytes of a file of labels: a million of 64 bytes.
pub const LABELS_BYTES_MAX: u64 = 64 << 20;

/// Folders within folders below a model's directory. A link that leads back up ends here.
pub const MODEL_DEPTH_MAX: usize = 32;

/// Files and folders below a model's directory.
pub const MODEL_ENTRIES_MAX: usize = 100_000;

/// Files that one load request may bring.
pub use nerite_request::limits::LOAD_FILES_MAX as SENT_FILES_MAX;

const _: () = assert!(SENT_FILES_MAX <= MODEL_ENTRIES_MAX);
