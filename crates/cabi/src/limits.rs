//! What are the limits of the objects of a backend, and how long does the server wait for it?

use std::time::Duration;

/// The most inputs of a request that a backend makes.
pub const INPUTS_MAX: usize = 4096;
/// The most host policies for which one input of such a request may have separate data.
pub const POLICIES_MAX: usize = 64;
/// The most outputs of one response, or of a request that a backend makes.
pub const OUTPUTS_MAX: usize = 4096;
/// The most instance groups that a backend prefers.
pub const PREFERRED_GROUPS_MAX: usize = 64;
/// The most files of one backend's directory that are looked at.
pub const LIBRARIES_MAX: usize = 4096;
/// The longest name of an activity that a backend reports.
pub const REPORT_BYTES_MAX: usize = 4096;
/// The most reports of activities that the context of a trace keeps.
pub const REPORTS_MAX: usize = 256;
/// The most metrics of all compiled backends at a time.
pub const METRICS_MAX: usize = 4096;
/// The most options of a server that is being made, and the most models that it loads at start.
pub const OPTIONS_MAX: usize = 4096;

/// How long an instance that ends waits for requests that were answered but not released.
pub const RELEASE_PATIENCE: Duration = Duration::from_secs(10);
