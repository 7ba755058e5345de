//! How large may the metrics of models become, and batches that are gathered on a device?

/// Families of metrics that one process of a model has at a time.
pub const METRIC_FAMILIES_MAX: usize = 256;
/// Metrics in all of them.
pub const METRICS_MAX: usize = 1024;
/// Bytes of a family's name.
pub const METRIC_NAME_BYTES_MAX: usize = 256;
/// Bytes of its description.
pub const METRIC_TEXT_BYTES_MAX: usize = 4096;
/// Bytes of all labels of one metric, names and values.
pub const METRIC_LABEL_BYTES_MAX: usize = 1024;
/// Buckets of a histogram.
pub const METRIC_BUCKETS_MAX: usize = 128;

/// Bytes of the inputs of one batch, if they are copied together on a device. Requests that would exceed it run in another batch.
pub const DEVICE_BATCH_BYTES_MAX: usize = 128 << 20;
/// Bytes of device memory that one instance keeps for inputs and outputs of its batches.
pub const DEVICE_BLOCKS_BYTES_MAX: usize = 256 << 20;

const _: () = assert!(DEVICE_BLOCKS_BYTES_MAX >= 2 * DEVICE_BATCH_BYTES_MAX);
