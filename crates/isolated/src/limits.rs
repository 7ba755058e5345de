//! How long may a child take, and how much may it send?

use std::time::Duration;

/// How long a child may take to start and to load a model that came with a load request. Models of the repositories have no limit.
pub const LOAD_MAX: Duration = Duration::from_mins(10);
/// How long a child may take to drop its model when it is unloaded. A compiled backend may need 10 s of that to release its requests.
pub const LEAVE_MAX: Duration = Duration::from_secs(15);
/// How long a run may continue after all its clients have gone. Then its process is ended.
pub const GONE_PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of an error's text that a child sends.
pub const ERROR_BYTES_MAX: usize = 16 << 10;
/// How long a child waits for the answer to a question about metrics.
pub const MEASURED_MAX: Duration = Duration::from_secs(10);
