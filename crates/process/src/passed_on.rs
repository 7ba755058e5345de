//! If an output stays in the server's memory for another request, which instance does the memory belong to?
//!
//! It is then an input of another model, or of the next request of its sequence.
//!
//! The memory of an instance is reused when nothing holds it any more. A model in a process may keep an array over its
//! input after it has answered. Then the server holds the memory until the array is gone. Clients reuse their memory
//! themselves, so the two kinds of inputs must be distinguished.
//!
//! Only processes of the instance itself get such memory as an input. Another process could still read and write it
//! when it is reused for the requests of other clients.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, MutexGuard, PoisonError, Weak};

use nerite_locks::Mutex;
use nerite_memory::{Buffer, Forget};

/// The outputs of all instances that stayed in their memory.
static PASSED_ON: LazyLock<Arc<PassedOn>> = LazyLock::new(Arc::default);

/// By the number of the memory: the number of the instance that it belongs to.
#[derive(Default)]
struct PassedOn(Mutex<HashMap<u64, u64>>);

/// Notes that this output stays where it is, in memory of that instance ([`crate::blocks::Block::instance`]).
pub(crate) fn note(output: &Buffer, instance: u64) {
    let Some(window) = output.share() else { return };
    let mark = window.share.mark();
    if PASSED_ON.lock().insert(mark.number(), instance).is_none() {
        let whole: Weak<dyn Forget> = Arc::downgrade(&(Arc::clone(&PASSED_ON) as Arc<dyn Forget>));
        mark.notify_on_release(whole);
    }
}

/// The number of the memory that an input lies in, if an output was left there.
pub(crate) fn number(input: &Buffer) -> Option<u64> {
    let number = input.share()?.share.mark().number();
    PASSED_ON.lock().contains_key(&number).then_some(number)
}

/// The instance whose memory an input lies in, if an output was left there.
pub(crate) fn instance(input: &Buffer) -> Option<u64> {
    let number = input.share()?.share.mark().number();
    PASSED_ON.lock().get(&number).copied()
}

impl PassedOn {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
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
        note(&buffer, 7);
        note(&buffer, 7);
        let whole = lease.buffer(Extent::whole(4096));
        let known = number(&whole).unwrap();
        assert_eq!(instance(&whole), Some(7));
        drop((lease, buffer, whole));
        assert!(!PASSED_ON.lock().contains_key(&known));
        note(&Buffer::from(vec![1u8; 3]), 7);
        assert_eq!(number(&Buffer::from(vec![1u8; 3])), None);
    }
}
