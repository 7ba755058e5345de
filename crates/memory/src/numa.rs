//! On which NUMA node does the new memory of a thread lie?

use std::ffi::{c_int, c_ulong};
use std::io;

/// Nodes that a policy can name. Linux has at most 1,024.
const NODES_MAX: usize = 1024;
const BITS: usize = c_ulong::BITS as usize;

/// The memory policy of a thread. Threads and processes that it starts inherit it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPolicy {
    mode: c_int,
    nodes: [c_ulong; NODES_MAX / BITS],
}

impl MemoryPolicy {
    /// The policy of this thread.
    pub fn of_thread() -> io::Result<MemoryPolicy> {
        let mut policy = MemoryPolicy { mode: libc::MPOL_DEFAULT, nodes: [0; NODES_MAX / BITS] };
        let (mode, nodes): (*mut c_int, *mut c_ulong) = (&raw mut policy.mode, policy.nodes.as_mut_ptr());
        let (address, flags): (c_ulong, c_ulong) = (0, 0);
        // SAFETY: the kernel writes one number to `mode`, and at most `NODES_MAX` bits to `nodes`, which has as many.
        let done = unsafe { libc::syscall(libc::SYS_get_mempolicy, mode, nodes, NODES_MAX as c_ulong, address, flags) };
        if done == 0 { Ok(policy) } else { Err(io::Error::last_os_error()) }
    }

    /// New memory comes from this node while the node has free memory, and from other nodes otherwise. `None` if the number is too large for a node of Linux.
    pub fn prefer(node: u32) -> Option<MemoryPolicy> {
        let node = usize::try_from(node).ok().filter(|node| *node < NODES_MAX)?;
        let mut nodes = [0; NODES_MAX / BITS];
        nodes[node / BITS] = 1 << (node % BITS);
        Some(MemoryPolicy { mode: libc::MPOL_PREFERRED, nodes })
    }

    /// Sets the policy of this thread. Memory that was allocated before is not moved.
    pub fn apply(&self) -> io::Result<()> {
        // The kernel reads one bit less than this number.
        let bits = NODES_MAX as c_ulong + 1;
        // SAFETY: the kernel reads `NODES_MAX` bits of `nodes`, which has as many.
        let done = unsafe { libc::syscall(libc::SYS_set_mempolicy, self.mode, self.nodes.as_ptr(), bits) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
#[cfg(not(miri))] // Miri does not know the system calls.
mod tests {
    use super::*;

    /// Whether this system lets a thread set its policy. Containers often do not.
    fn may_choose() -> bool {
        MemoryPolicy::of_thread().is_ok_and(|policy| policy.apply().is_ok())
    }

    #[test]
    fn a_thread_and_those_that_it_starts_prefer_a_node_until_it_goes_back() {
        if !may_choose() {
            return;
        }
        let before = MemoryPolicy::of_thread().unwrap();
        let first = MemoryPolicy::prefer(0).unwrap();
        assert_ne!(before, first);
        first.apply().unwrap();
        assert_eq!(MemoryPolicy::of_thread().unwrap(), first);
        let inherited = std::thread::scope(|scope| scope.spawn(MemoryPolicy::of_thread).join().unwrap());
        assert_eq!(inherited.unwrap(), first);
        before.apply().unwrap();
        assert_eq!(MemoryPolicy::of_thread().unwrap(), before);
    }

    #[test]
    fn a_node_that_is_not_there_is_refused() {
        assert!(MemoryPolicy::prefer(1023).is_some() && MemoryPolicy::prefer(1024).is_none());
        if may_choose() {
            // No test runs on a machine with 1,024 nodes.
            let refused = MemoryPolicy::prefer(1023).unwrap().apply().unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
        }
    }
}
