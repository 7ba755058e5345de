//! How much memory do the processes of a model have, as they report it?

use std::collections::BTreeMap;
use std::sync::Arc;

use nerite_request::report::MemoryUsage;

use crate::child::Child;
use crate::living::Living;
use crate::supervisor::Side;

/// The processes of one model version. Each has the model and one instance of it, and is counted as long as it lives.
#[derive(Default)]
pub struct ProcessMemory(Living<Side>);

impl ProcessMemory {
    /// Counts this process from now on, with the memory that it has reported already.
    pub fn add(&self, child: &Child) {
        self.add_side(&child.side);
    }

    /// The sums, by kind and number of device.
    pub fn report(&self) -> Vec<MemoryUsage> {
        let all = self.0.all();
        let mut sums: BTreeMap<(&'static str, i64), u64> = BTreeMap::new();
        for MemoryUsage { kind, id, bytes } in all.iter().flat_map(|side| side.memory()) {
            let sum = sums.entry((kind, id)).or_default();
            *sum = sum.saturating_add(bytes);
        }
        sums.into_iter().map(|((kind, id), bytes)| MemoryUsage { kind, id, bytes }).collect()
    }

    fn add_side(&self, side: &Arc<Side>) {
        self.0.add(side);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::channel::Channel;
    use crate::supervisor::Supervisor;

    #[test]
    fn what_a_process_reports_last_counts_as_long_as_it_lives() {
        let (memory, supervisor) = (ProcessMemory::default(), Supervisor::start("nerite-test").unwrap());
        let begin = || {
            let (side, theirs) = Side::pair().unwrap();
            supervisor.watch(Arc::clone(&side), None).unwrap();
            memory.add_side(&side);
            (side, Channel::from(theirs))
        };
        let settles = |expect: &[(&'static str, i64, u64)]| {
            let expect: Vec<_> =
                expect.iter().map(|(kind, id, bytes)| MemoryUsage { kind, id: *id, bytes: *bytes }).collect();
            while memory.report() != expect {
                std::thread::yield_now();
            }
        };
        let ((first, first_theirs), (second, second_theirs)) = (begin(), begin());
        settles(&[]);
        first_theirs.send(r#"{"memory":[["CPU",0,99]]}"#, &[]).unwrap();
        first_theirs.send(r#"{"memory":[["GPU",1,7],["CPU",0,10]]}"#, &[]).unwrap();
        second_theirs.send(r#"{"memory":[["CPU",0,5]]}"#, &[]).unwrap();
        settles(&[("CPU", 0, 15), ("GPU", 1, 7)]);
        for broken in [r#"{"memory":[["ROM",0,5]]}"#, r#"{"memory":[["CPU",0]]}"#, r#"{"memory":7}"#] {
            second_theirs.send(broken, &[]).unwrap();
        }
        second_theirs.send(format!(r#"{{"memory":[["CPU",0,{}]]}}"#, u64::MAX), &[]).unwrap();
        settles(&[("CPU", 0, u64::MAX), ("GPU", 1, 7)]);
        drop((second, second_theirs));
        settles(&[("CPU", 0, 10), ("GPU", 1, 7)]);
        drop((first, first_theirs));
        settles(&[]);
    }
}
