//! Which limits apply to the metrics of models, to batches on a device, to imported files and to threads of models?

/// The most families of metrics that one process of a model has at a time.
pub const METRIC_FAMILIES_MAX: usize = 256;
/// The most metrics in all families of one process.
pub const METRICS_MAX: usize = 1024;
/// Bytes of a family's name.
pub const METRIC_NAME_BYTES_MAX: usize = 256;
/// Bytes of a family's description.
pub const METRIC_TEXT_BYTES_MAX: usize = 4096;
/// Bytes of all labels of one metric, names and values.
pub const METRIC_LABEL_BYTES_MAX: usize = 1024;
/// Buckets of a histogram.
pub const METRIC_BUCKETS_MAX: usize = 128;

/// Bytes of the inputs of one batch, if they are copied together on a device. Requests that would exceed it run in another batch.
pub const DEVICE_BATCH_BYTES_MAX: usize = 128 << 20;
/// Bytes of device memory that one instance keeps for inputs and outputs of its batches.
pub const DEVICE_BLOCKS_BYTES_MAX: usize = 256 << 20;

/// Files outside of a model's directory that are followed because one version of it imported them. `python/nerite/model/imports.py` reports no more.
pub const IMPORTED_FILES_MAX: usize = 256;
/// Bytes of the path of such a file.
pub const IMPORTED_PATH_BYTES_MAX: usize = 1024;

/// Threads that all instances of an ONNX model may have by its configuration. The limit prevents that a typing error in a configuration exhausts the
/// threads of the host.
pub const MODEL_THREADS_MAX: usize = 4096;

const _: () = assert!(DEVICE_BLOCKS_BYTES_MAX >= 2 * DEVICE_BATCH_BYTES_MAX);
