//! Which limits does a configuration have?

/// The most instances of one model, over all its groups and their GPUs. Each may take threads and memory, so a typing error must not take all resources.
pub const INSTANCES_MAX: u64 = 1024;

/// Buckets of one histogram. A scrape of the metrics writes a line for each, for each version of the model.
pub const HISTOGRAM_BUCKETS_MAX: usize = 256;

/// Entries of `metric_tags`, which are on each line of the model in the metrics.
pub const METRIC_TAGS_MAX: usize = 64;
/// Bytes of all their names and values.
pub const METRIC_TAG_BYTES_MAX: usize = 2048;

/// Steps of an ensemble, with those of the ensembles in it: what one request may start.
pub const ENSEMBLE_STEPS_MAX: usize = 4096;
