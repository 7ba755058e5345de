//! How much memory does a model have, as its backend reports it?

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use nerite_locks::Mutex;
use nerite_request::report::MemoryUsage;

use super::attributes::AttributeValues;

/// The memory that a backend reported for a model or for one instance. A later report replaces it.
#[derive(Default)]
pub struct SaidMemory(Mutex<Vec<(u32, i64, u64)>>);

impl SaidMemory {
    /// Replaces the report.
    pub fn say<'t>(&self, parts: impl Iterator<Item = MutexGuard<'t, AttributeValues>>) {
        let parts = parts.map(|values| (values.memory_type, values.memory_id, values.byte_size as u64)).collect();
        *lock(&self.0) = parts;
    }
}

/// The memory of a model and of its instances.
#[derive(Default)]
pub struct MemoryOfModel {
    own: SaidMemory,
    instances: Mutex<Vec<Weak<SaidMemory>>>,
}

impl MemoryOfModel {
    /// The report of the model itself.
    pub fn own(&self) -> &SaidMemory {
        &self.own
    }

    /// The report of a new instance. It counts as long as the instance lives.
    pub fn of_instance(&self) -> Arc<SaidMemory> {
        let said = Arc::new(SaidMemory::default());
        let mut instances = lock(&self.instances);
        instances.retain(|known| known.strong_count() > 0);
        instances.push(Arc::downgrade(&said));
        said
    }

    /// The sums, by type and number of device.
    pub fn report(&self) -> Vec<MemoryUsage> {
        let mut sums: BTreeMap<(u32, i64), u64> = BTreeMap::new();
        let instances: Vec<_> = lock(&self.instances).iter().filter_map(Weak::upgrade).collect();
        for said in instances.iter().map(|said| &**said).chain([&self.own]) {
            for (memory_type, id, bytes) in &*lock(&said.0) {
                let sum = sums.entry((*memory_type, *id)).or_default();
                *sum = sum.saturating_add(*bytes);
            }
        }
        let row = |((memory_type, id), bytes)| Some(MemoryUsage { kind: kind(memory_type)?, id, bytes });
        sums.into_iter().filter_map(row).collect()
    }
}

/// Triton's word for a type of memory.
fn kind(memory_type: u32) -> Option<&'static str> {
    Some(match memory_type {
        0 => "CPU",
        1 => "CPU_PINNED",
        2 => "GPU",
        _ => return None,
    })
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::BufferAttributes;
    use super::*;

    fn say(to: &SaidMemory, parts: &[(u32, i64, usize)]) {
        let all: Vec<BufferAttributes> = parts
            .iter()
            .map(|(memory_type, memory_id, byte_size)| {
                let one = BufferAttributes::default();
                let mut values = one.values();
                (values.memory_type, values.memory_id, values.byte_size) = (*memory_type, *memory_id, *byte_size);
                drop(values);
                one
            })
            .collect();
        to.say(all.iter().map(BufferAttributes::values));
    }

    #[track_caller]
    fn check(memory: &MemoryOfModel, expect: &[(&'static str, i64, u64)]) {
        let found: Vec<_> = memory.report().iter().map(|one| (one.kind, one.id, one.bytes)).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn what_is_said_last_counts_and_instances_count_as_long_as_they_live() {
        let memory = MemoryOfModel::default();
        check(&memory, &[]);
        say(memory.own(), &[(0, 0, 99)]);
        say(memory.own(), &[(0, 0, 10), (2, 1, 7)]);
        check(&memory, &[("CPU", 0, 10), ("GPU", 1, 7)]);
        let (one, other) = (memory.of_instance(), memory.of_instance());
        say(&one, &[(0, 0, 5), (0, 0, 1)]);
        say(&other, &[(1, 0, 3), (9, 0, 1), (0, 0, usize::MAX)]);
        check(&memory, &[("CPU", 0, u64::MAX), ("CPU_PINNED", 0, 3), ("GPU", 1, 7)]);
        drop(other);
        check(&memory, &[("CPU", 0, 16), ("GPU", 1, 7)]);
    }
}
