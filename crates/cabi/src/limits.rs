//! What bounds what a backend makes?

/// The most outputs of one response.
pub const OUTPUTS_MAX: usize = 4096;
/// The most metric families, and metrics of one of them.
pub const METRICS_MAX: usize = 4096;
