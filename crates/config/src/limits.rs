//! How much may a configuration ask for?

/// Instances of one model, all its groups and their GPUs together. Each may take threads and memory of its own, so a slip of
/// the finger must not take all there are.
pub const INSTANCES_MAX: u64 = 1024;
