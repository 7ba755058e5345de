//! What bounds what a backend makes, and how long it is waited for?

use std::time::Duration;

/// The most outputs of one response.
pub const OUTPUTS_MAX: usize = 4096;
/// The most metrics that all compiled backends have at a time.
pub const METRICS_MAX: usize = 4096;

/// An instance that ends waits so long for requests that were answered and not released.
pub const RELEASE_PATIENCE: Duration = Duration::from_secs(10);
