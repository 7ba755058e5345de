//! What bounds what a backend makes?

/// The most outputs of one response.
pub const OUTPUTS_MAX: usize = 4096;
