//! If an output stays in the server's memory for another request, which instances may use the memory?
//!
//! Such an output is an input of another model, or of the next request of its sequence.
//!
//! The memory of an instance is reused when nothing holds it any more. A model in a process may keep an array over its
//! input after it has answered. Then the server holds the memory until the array is gone. It cannot do so for a client's
//! memory, which the client itself reuses. So the server must know which inputs lie in its own memory.
//!
//! A process can read and write mapped memory for as long as it lives, and sees all that the memory is reused for. So a
//! process gets such inputs only in memory of its own instance, or of a set of instances that it belongs to
//! ([`Sharers`]). Memory of one instance has inputs and outputs of that instance. Memory of several instances has only
//! outputs that one of them, or the server, writes and all the others read.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, MutexGuard, PoisonError, Weak};

use nerite_locks::Mutex;
use nerite_memory::{Buffer, ReleaseListener};

/// The outputs of all instances that stayed in their memory.
static PASSED_ON: LazyLock<Arc<PassedOn>> = LazyLock::new(Arc::default);

/// The instances whose processes may map memory of the server, by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sharers {
    /// The instance that the memory belongs to. `None` if only the server writes there.
    pub(crate) owner: Option<u64>,
    /// The instances that read the owner's outputs there, in ascending order.
    pub(crate) readers: Arc<[u64]>,
    /// Whether an output there has several readers. Then the processes of the readers map the memory privately, so that
    /// none of them changes what the others read.
    pub(crate) is_joint: bool,
}

impl Sharers {
    /// Memory of this instance alone.
    pub(crate) fn only(instance: u64) -> Sharers {
        Sharers { owner: Some(instance), readers: Arc::default(), is_joint: false }
    }

    /// Whether the process of this instance may read inputs in the memory. If an output has several readers, its writer is
    /// not one of them, because it maps the memory to write there.
    pub(crate) fn may_read(&self, instance: u64) -> bool {
        let is_owner = self.owner == Some(instance);
        if self.is_joint {
            !is_owner && self.readers.contains(&instance)
        } else {
            is_owner || self.readers.contains(&instance)
        }
    }
}

/// The instances whose processes may map each memory, by the number of the memory.
#[derive(Default)]
struct PassedOn(Mutex<HashMap<u64, Sharers>>);

/// Notes that this output stays where it is, in memory of these instances ([`crate::blocks::Block::sharers`]).
pub(crate) fn note(output: &Buffer, sharers: Sharers) {
    let Some(window) = output.share() else { return };
    let mark = window.share.mark();
    if PASSED_ON.lock().insert(mark.number(), sharers).is_none() {
        let whole: Weak<dyn ReleaseListener> = Arc::downgrade(&(Arc::clone(&PASSED_ON) as Arc<dyn ReleaseListener>));
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
    PASSED_ON.lock().get(&number).cloned()
}

impl PassedOn {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Sharers>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReleaseListener for PassedOn {
    fn on_release(&self, share: u64) {
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
