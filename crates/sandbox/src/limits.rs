//! How much memory may a process have, and how large may its files be?

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::policy::Policy;

/// The stack of a process whose server has no limit on it, as Linux has it by default.
const STACK_BYTES: u64 = 8 << 20;

/// Sets them. A limit that the process has already is never raised.
pub(crate) fn restrict(policy: &Policy) -> io::Result<()> {
    // A core file of a model has its clients' tensors in it.
    lower(Resource::Core, 0)?;
    if let Some(bytes) = policy.memory_bytes {
        // Private memory that can be written. Regions and leases are shared, and the client's or the server's.
        lower(Resource::Data, bytes)?;
        // The first thread's stack is not counted. Its limit can be raised up to the hard one, which is mostly none.
        lower(Resource::Stack, getrlimit(Resource::Stack).current.unwrap_or(STACK_BYTES))?;
    }
    if let Some(bytes) = policy.file_bytes {
        lower(Resource::Fsize, bytes)?;
    }
    Ok(())
}

/// The most that both allow.
pub(crate) fn lower(resource: Resource, at_most: u64) -> io::Result<()> {
    let before = getrlimit(resource);
    let least = |limit: Option<u64>| Some(limit.map_or(at_most, |limit| limit.min(at_most)));
    Ok(setrlimit(resource, Rlimit { current: least(before.current), maximum: least(before.maximum) })?)
}
