//! How many descriptors may the server have?

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// As many as any server needs; some systems allow a billion, and programs that close all of them at a start would take long.
const DESCRIPTORS_MAX: u64 = 1 << 20;

/// Raises the soft limit on open descriptors as far as the hard one lets it. The soft one is 1,024 on most systems, for the
/// sake of programs that use `select`; descriptors on their way to clients count against it.
pub fn raise_descriptor_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(DESCRIPTORS_MAX, |maximum| maximum.min(DESCRIPTORS_MAX));
    if current.is_some_and(|current| current < wanted) {
        // It stays as it is where the system does not let us; then fewer connections fit.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}
