//! If an output stays in the server's memory for another request, which instances may use the memory?
//!
//! It is then an input of another model, or of the next request of its sequence.
//!
//! The memory of an instance is reused when nothing holds it any more. A model in a process may keep an array over its
//! input after it has answered. Then the server holds the memory until the array is gone. Clients reuse their memory
//! themselves, so the two kinds of inputs must be distinguished.
//!
//! A process can read and write memory that it has mapped for as long as it lives. So such memory is an input only for
//! processes of its own instances ([`Sharers`]), which see all that it is reused for. Memory of one instance has inputs
//! and outputs of that instance. Memory of two instances has only outputs that one of them writes and the other one reads.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, MutexGuard, PoisonError, Weak};

use nerite_locks::Mutex;
use nerite_memory::{Buffer, Forget};

/// The outputs of all instances that stayed in their memory.
static PASSED_ON: LazyLock<Arc<PassedOn>> = LazyLock::new(Arc::default);

/// The instances whose processes may map memory of the server, by their numbers. Both are the same for memory of one instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sharers {
    /// The instance that the memory belongs to.
    pub(crate) owner: u64,
    /// The instance that reads the owner's outputs there.
    pub(crate) reader: u64,
}

impl Sharers {
    /// Memory of this instance alone.
    pub(crate) fn only(instance: u64) -> Sharers {
        Sharers { owner: instance, reader: instance }
    }

    /// Whether the process of this instance may map the memory.
    pub(crate) fn have(self, instance: u64) -> bool {
        instance == self.owner || instance == self.reader
    }
}

/// By the number of the memory: the instances whose processes may map it.
#[derive(Default)]
struct PassedOn(Mutex<HashMap<u64, Sharers>>);

/// Notes that this output stays where it is, in memory of these instances ([`crate::blocks::Block::sharers`]).
pub(crate) fn note(output: &Buffer, sharers: Sharers) {
    let Some(window) = output.share() else { return };
    let mark = window.share.mark();
    if PASSED_ON.lock().insert(mark.number(), sharers).is_none() {
        let whole: Weak<dyn Forget> = Arc::downgrade(&(Arc::clone(&PASSED_ON) as Arc<dyn Forget>));
        mark.notify_on_release(whole);
    }
}

/// The number of the memory that an input lies in, if an output was left there.
pub(crate) fn number(input: &Buffer) -> Option<u64> {
    let number = input.share()?.share.mark().number();
    PASSED_ON.lock().contains_key(&number).then_some(number)
}

/// The instances that may use the memory that an input lies in, if an output was left there.
pub(crate) fn sharers(input: &Buffer) -> Option<Sharers> {
    let number = input.share()?.share.mark().number();
    PASSED_ON.lock().get(&number).copied()
}

impl PassedOn {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Sharers>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Forget for PassedOn {
    fn forget(&self, share: u64) {
        self.lock().remove(&share);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use nerite_memory::Extent;
    use nerite_shm::{LeaseLimits, Pools};

    use super::*;

    #[test]
    fn memory_is_known_until_it_is_released() {
        let lease = Pools::new(LeaseLimits::default()).open().take(4096).unwrap();
        let buffer = lease.buffer(Extent::new(64, 8, 4096).unwrap());
        assert_eq!(number(&buffer), None);
        note(&buffer, Sharers::only(7));
        note(&buffer, Sharers::only(7));
        let whole = lease.buffer(Extent::whole(4096));
        let known = number(&whole).unwrap();
        assert_eq!(sharers(&whole), Some(Sharers::only(7)));
        drop((lease, buffer, whole));
        assert!(!PASSED_ON.lock().contains_key(&known));
        note(&Buffer::from(vec![1u8; 3]), Sharers::only(7));
        assert_eq!(number(&Buffer::from(vec![1u8; 3])), None);
    }
}
