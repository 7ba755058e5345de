//! How large may the metrics of models become?

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
