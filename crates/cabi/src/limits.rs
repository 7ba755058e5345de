//! What bounds what a backend makes?

/// The most outputs of one response.
pub const OUTPUTS_MAX: usize = 4096;
/// The most metrics that all compiled backends have at a time.
pub const METRICS_MAX: usize = 4096;
