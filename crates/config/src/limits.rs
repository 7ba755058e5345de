//! Which limits does a configuration have?

/// The most instances of one model, over all its groups and their GPUs. Each may take threads and memory, so a typing error must not take all resources.
pub const INSTANCES_MAX: u64 = 1024;
