//! What is known of the instances of a model version outside of their pool?

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nerite_backend::{Instance, Job, Readiness};
use nerite_request::InputMemory;
use nerite_request::limits::SHARED_BYTES_MIN;
use nerite_schedule::InstanceId;

use crate::instances::Signature;

/// An instance that the pool has.
#[derive(Clone)]
pub(crate) struct Member {
    /// Its number in the pool.
    pub number: usize,
    pub traits: Traits,
}

/// What is known of an instance outside of the pool.
#[derive(Clone)]
pub(crate) struct Traits {
    pub signature: Signature,
    /// `Some` if the instance can report that it is not ready.
    pub readiness: Option<Arc<dyn Readiness>>,
    /// `Some` if it reads inputs that lie there without a copy.
    input_memory: Option<Arc<dyn InputMemory>>,
}

impl Traits {
    /// The traits of these instances, which the pool does not have yet.
    pub fn all(signatures: Vec<Signature>, instances: &[Box<dyn Instance>]) -> Vec<Traits> {
        let each = signatures.into_iter().zip(instances);
        each.map(|(signature, instance)| Traits {
            signature,
            readiness: instance.readiness(),
            input_memory: instance.input_memory(),
        })
        .collect()
    }
}

impl Member {
    /// The instances to which the pool gave these numbers.
    pub fn all(traits: Vec<Traits>, numbers: impl IntoIterator<Item = usize>) -> impl Iterator<Item = Member> {
        traits.into_iter().zip(numbers).map(|(traits, number)| Member { number, traits })
    }
}

/// All instances of a model version.
pub(crate) struct Members {
    list: Vec<Member>,
    /// How often one of several instances was chosen.
    turns: AtomicUsize,
}

impl Members {
    pub fn new(list: Vec<Member>) -> Members {
        Members { list, turns: AtomicUsize::new(0) }
    }

    pub fn list(&self) -> &[Member] {
        &self.list
    }

    /// The input memory of the instance that a later request should run on. Of several, one of the `idle` ones is chosen, in turn. `None` if none is
    /// idle: the request will run on the first instance that becomes idle.
    pub fn input_memory(&self, idle: impl FnOnce() -> Vec<usize>) -> Option<Arc<dyn InputMemory>> {
        if let [only] = self.list.as_slice() {
            return only.traits.input_memory.clone();
        }
        if self.list.iter().all(|member| member.traits.input_memory.is_none()) {
            return None;
        }
        let idle = idle();
        let idle: Vec<&Member> = self.list.iter().filter(|member| idle.contains(&member.number)).collect();
        let chosen = self.turns.fetch_add(1, Ordering::Relaxed).checked_rem(idle.len())?;
        idle.get(chosen)?.traits.input_memory.clone()
    }

    /// The instance whose process can read a large input of the job where it lies. `None` if there is only one instance.
    pub fn preferred_by(&self, job: &Job) -> Option<InstanceId> {
        if self.list.len() < 2 {
            return None;
        }
        let mut inputs = job.inputs().iter().map(|input| &input.data).filter(|data| data.len() >= SHARED_BYTES_MIN);
        let reads = |data| {
            move |member: &&Member| member.traits.input_memory.as_ref().is_some_and(|memory| memory.can_read(data))
        };
        inputs.find_map(|data| self.list.iter().find(reads(data))).map(|member| InstanceId(member.number))
    }
}

#[cfg(test)]
mod tests {
    use nerite_memory::{Buffer, Slot};

    use super::*;

    struct Memory;

    impl InputMemory for Memory {
        fn slot(&self, _: usize) -> Option<Slot> {
            None
        }

        fn can_read(&self, _: &Buffer) -> bool {
            false
        }
    }

    /// Which instances are chosen by four calls, of instances with input memory or without it.
    #[track_caller]
    fn check(have_memory: &[bool], idle: &[usize], expected: [Option<usize>; 4]) {
        let member = |(number, has_memory): (usize, &bool)| Member {
            number,
            traits: Traits {
                signature: Signature::default(),
                readiness: None,
                input_memory: has_memory.then(|| Arc::new(Memory) as _),
            },
        };
        let members = Members::new(have_memory.iter().enumerate().map(member).collect());
        let number_of = |memory: Arc<dyn InputMemory>| {
            let is_it =
                |member: &Member| member.traits.input_memory.as_ref().is_some_and(|own| Arc::ptr_eq(own, &memory));
            members.list.iter().position(is_it)
        };
        let chosen = [(); 4].map(|()| members.input_memory(|| idle.to_vec()).and_then(number_of));
        assert_eq!(chosen, expected, "{have_memory:?}, idle {idle:?}");
    }

    #[test]
    fn the_idle_instances_are_chosen_in_turn() {
        check(&[true], &[], [Some(0); 4]);
        check(&[true; 3], &[0, 2], [Some(0), Some(2), Some(0), Some(2)]);
        check(&[true; 2], &[], [None; 4]);
        check(&[false; 2], &[0, 1], [None; 4]);
        check(&[], &[], [None; 4]);
    }
}
