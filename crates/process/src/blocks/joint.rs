//! Where does the server place a tensor that several instances read?
//!
//! ```text
//!   writer: maps it shared ──► tensor ──► reader 1: maps it privately
//!                                    ├──► reader 2: maps it privately
//!                                    └──► the server
//! ```
//! If a reader writes to a page, the kernel makes a private copy of the page for it (`MAP_PRIVATE`), so no reader changes what the others read.
//! Before the next request the process drops such copies. A process in a sandbox gets a copy of the tensor instead, because it could map the memory
//! shared with the descriptor that it would be sent.

use std::any::Any;
use std::sync::{Arc, PoisonError, Weak};

use nerite_locks::Mutex;
use nerite_memory::{Buffer, Slot};
use nerite_request::InputMemory;

use super::Blocks;
use crate::limits::READER_SETS_MAX;
use crate::passed_on::{self, Sharers};

/// Memory for inputs that several instances read.
pub(super) struct JointInput {
    readers: Vec<Weak<Blocks>>,
    /// Their numbers, in ascending order.
    numbers: Arc<[u64]>,
    /// Whether the server reads the inputs too.
    read_here: bool,
    /// Memory for inputs that the server writes.
    blocks: Blocks,
}

/// The memory for inputs of one instance and others, by the set of instances. The instance with the lowest number has it.
#[derive(Default)]
pub(super) struct JointInputs(Mutex<Vec<Arc<JointInput>>>);

impl JointInput {
    /// Memory for inputs of these instances, without those that get copies. An instance may read an input for several steps. `None` if fewer than two
    /// readers are left.
    pub(super) fn of(
        first: Arc<Blocks>,
        others: &[Arc<dyn InputMemory>],
        read_here: bool,
    ) -> Option<Arc<dyn InputMemory>> {
        let others =
            others.iter().filter_map(|other| (Arc::clone(other) as Arc<dyn Any + Send + Sync>).downcast().ok());
        let mut readers: Vec<Arc<Blocks>> = others.chain([first]).filter(|reader| reader.reads_jointly()).collect();
        if readers.len() + usize::from(read_here) < 2 {
            return None;
        }
        readers.sort_by_key(|reader| reader.instance());
        readers.dedup_by_key(|reader| reader.instance());
        let owner = readers.first()?;
        let memory: Arc<dyn InputMemory> = owner.joint.get(owner, &readers, read_here)?;
        Some(memory)
    }

    /// The instances that read it. `None` if one of them has ended.
    pub(super) fn readers(&self) -> Option<Vec<Arc<Blocks>>> {
        self.readers.iter().map(Weak::upgrade).collect()
    }
}

impl JointInputs {
    /// The memory of this set. `None` if there are too many sets.
    fn get(&self, owner: &Blocks, readers: &[Arc<Blocks>], read_here: bool) -> Option<Arc<JointInput>> {
        let numbers = numbers_of(readers);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.iter().find(|known| known.read_here == read_here && known.numbers == numbers) {
            return Some(Arc::clone(known));
        }
        all.retain(|known| known.readers.iter().all(|reader| reader.strong_count() > 0));
        if all.len() >= READER_SETS_MAX {
            return None;
        }
        let sharers = Sharers { owner: None, readers: Arc::clone(&numbers), is_joint: true };
        let blocks = Blocks::shared_by(&owner.pools, sharers);
        let readers = readers.iter().map(Arc::downgrade).collect();
        let made = Arc::new(JointInput { readers, numbers, read_here, blocks });
        all.push(Arc::clone(&made));
        Some(made)
    }
}

impl InputMemory for JointInput {
    /// `None` if the server reads the output itself: it reads private memory faster.
    fn slot(&self, bytes: usize) -> Option<Slot> {
        if self.read_here { None } else { self.blocks.slot(bytes) }
    }

    fn can_read(&self, output: &Buffer) -> bool {
        passed_on::sharers(output).is_some_and(|sharers| sharers.is_joint && sharers.readers == self.numbers)
    }
}

/// The numbers of these instances, in ascending order if the instances are.
pub(super) fn numbers_of(readers: &[Arc<Blocks>]) -> Arc<[u64]> {
    readers.iter().map(|reader| reader.instance()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use nerite_shm::{LeaseLimits, Pools};

    use super::*;

    fn instances<const COUNT: usize>() -> [Arc<Blocks>; COUNT] {
        let pools = Pools::new(LeaseLimits::default());
        [(); COUNT].map(|()| Arc::new(Blocks::new(&pools)))
    }

    fn joint(readers: &[&Arc<Blocks>], read_here: bool) -> Option<Arc<dyn InputMemory>> {
        let (first, others) = readers.split_first().unwrap();
        let others: Vec<_> = others.iter().map(|other| Arc::clone(other) as Arc<dyn InputMemory>).collect();
        Arc::clone(first).joint(&others, read_here)
    }

    #[test]
    fn a_set_of_readers_has_memory_that_all_of_them_read_and_no_other_instance() {
        let [first, second, third] = instances();
        let memory = joint(&[&second, &first, &second], false).unwrap();
        assert!(Arc::ptr_eq(&memory, &joint(&[&first, &second], false).unwrap()));
        let output = memory.slot(20_000).unwrap().filled().into_buffer();
        let reads = [&first, &second, &third].map(|reader| reader.can_read(&output));
        assert_eq!((reads, memory.can_read(&output)), ([true, true, false], true));
        assert!(!joint(&[&first, &third], false).unwrap().can_read(&output));
        assert!(!memory.can_read(&first.slot(20_000).unwrap().filled().into_buffer()));
    }

    #[test]
    fn one_reader_has_joint_memory_only_if_the_server_or_another_step_reads_too() {
        let [first] = instances();
        assert!(joint(&[&first], false).is_none());
        assert!(joint(&[&first, &first], false).is_some());
        let memory = joint(&[&first], true).unwrap();
        assert!(memory.slot(20_000).is_none(), "the server writes to private memory");
    }

    #[test]
    fn an_instance_in_a_sandbox_has_no_joint_memory() {
        let [first, second] = instances();
        let confined = Arc::new(Blocks::new(&first.pools).confined(true));
        assert!(joint(&[&first, &confined], false).is_none() && joint(&[&confined], true).is_none());
        let memory = joint(&[&confined, &first, &second], false).unwrap();
        let output = memory.slot(20_000).unwrap().filled().into_buffer();
        assert_eq!([&first, &second, &confined].map(|reader| reader.can_read(&output)), [true, true, false]);
    }

    #[test]
    fn sets_of_readers_are_bounded_and_go_with_an_instance() {
        let [first] = instances();
        for _ in 0..=READER_SETS_MAX {
            let other = Arc::new(Blocks::new(&first.pools));
            assert!(joint(&[&first, &other], false).is_some());
        }
        let others: Vec<_> = (0..=READER_SETS_MAX).map(|_| Arc::new(Blocks::new(&first.pools))).collect();
        let found = others.iter().filter(|other| joint(&[&first, other], false).is_some()).count();
        assert_eq!(found, READER_SETS_MAX);
    }
}
