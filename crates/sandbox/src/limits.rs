//! How much memory may a process have, and how large may its files be?

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::policy::Policy;

/// The limit on the stack if the server has none: Linux's default.
const STACK_BYTES: u64 = 8 << 20;

/// Sets the policy's limits. A limit that the process has already is never raised.
pub(crate) fn restrict(policy: &Policy) -> io::Result<()> {
    // A core file of a model contains tensors of its clients.
    lower(Resource::Core, 0)?;
    if let Some(bytes) = policy.memory_bytes {
        // This counts private writable memory. Regions and leases are shared, and belong to the client or the server.
        lower(Resource::Data, bytes)?;
        // The first thread's stack is not counted. The process could raise its limit up to the hard one, which usually does not exist.
        lower(Resource::Stack, getrlimit(Resource::Stack).current.unwrap_or(STACK_BYTES))?;
    }
    if let Some(bytes) = policy.file_bytes {
        lower(Resource::Fsize, bytes)?;
    }
    Ok(())
}

/// Lowers the limit to `at_most`, unless it is lower already.
pub(crate) fn lower(resource: Resource, at_most: u64) -> io::Result<()> {
    let before = getrlimit(resource);
    let least = |limit: Option<u64>| Some(limit.map_or(at_most, |limit| limit.min(at_most)));
    Ok(setrlimit(resource, Rlimit { current: least(before.current), maximum: least(before.maximum) })?)
}
