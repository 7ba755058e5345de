//! Do models wait for each other in a cycle?
//!
//! A model that sends a request to another model waits in its instance. If all instances of a model wait for models that are blocked in the same way,
//! no answer can come. So the request that would close the cycle is refused. If an instance leaves and this closes a cycle, requests are cancelled
//! until there is no cycle. Apart from the lock, the decisions are pure functions.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_request::Cancel;

/// The instances of models in processes, and what they wait for.
#[derive(Debug, Default)]
pub struct Waits(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: u64,
    instances: HashMap<u64, Instance>,
}

#[derive(Debug)]
struct Instance {
    model: String,
    /// The calls it waits for, by its own number of the request.
    calls: HashMap<u64, Call>,
}

#[derive(Debug)]
struct Call {
    /// The models that must answer.
    targets: Vec<String>,
    cancel: Cancel,
}

/// One instance. It is removed when this is dropped.
#[derive(Debug)]
pub struct Waiter {
    waits: Arc<Waits>,
    number: u64,
}

impl Waits {
    /// Adds an instance of a model.
    pub fn instance(self: &Arc<Waits>, model: &str) -> Waiter {
        let mut state = self.lock();
        state.last += 1;
        let number = state.last;
        state.instances.insert(number, Instance { model: model.to_owned(), calls: HashMap::new() });
        Waiter { waits: Arc::clone(self), number }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter {
    /// Notes that the instance waits for the answer of these models to its request `call`. `false` if no answer is possible. Then the instance must
    /// not wait. `cancel` is called if the answer becomes impossible because an instance leaves.
    pub fn begin(&self, call: u64, targets: Vec<String>, cancel: Cancel) -> bool {
        let mut state = self.waits.lock();
        let Some(instance) = state.instances.get_mut(&self.number) else { return true };
        let model = instance.model.clone();
        instance.calls.insert(call, Call { targets, cancel });
        if !state.stuck().contains(model.as_str()) {
            return true;
        }
        if let Some(instance) = state.instances.get_mut(&self.number) {
            instance.calls.remove(&call);
        }
        false
    }

    /// Ends the wait: the answer has come, or is not needed any more.
    pub fn end(&self, call: u64) {
        if let Some(instance) = self.waits.lock().instances.get_mut(&self.number) {
            instance.calls.remove(&call);
        }
    }

    /// Ends all waits, because its process has ended.
    pub fn end_all(&self) {
        if let Some(instance) = self.waits.lock().instances.get_mut(&self.number) {
            instance.calls.clear();
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut state = self.waits.lock();
        state.instances.remove(&self.number);
        let deadlocked: Vec<Call> = std::iter::from_fn(|| state.take_deadlocked()).collect();
        drop(state);
        // Requests are cancelled without the lock, because a cancelled request calls `end`.
        for Call { targets, cancel } in deadlocked {
            log::warn!(
                "a request for model '{}' was cancelled: no instance is left that could answer it; give it more instances (instance_group)",
                targets.first().map_or("", String::as_str)
            );
            cancel.cancel();
        }
    }
}

impl Call {
    fn waits_for(&self, models: &HashSet<&str>) -> bool {
        self.targets.iter().any(|target| models.contains(target.as_str()))
    }
}

impl State {
    /// Takes one call that cannot be answered, if there is any.
    fn take_deadlocked(&mut self) -> Option<Call> {
        let stuck = self.stuck();
        let found = self.instances.iter().find_map(|(number, instance)| {
            let mut calls = instance.calls.iter().filter(|_| stuck.contains(instance.model.as_str()));
            calls.find(|(_, call)| call.waits_for(&stuck)).map(|(call, _)| (*number, *call))
        });
        let (number, call) = found?;
        self.instances.get_mut(&number)?.calls.remove(&call)
    }

    /// The models whose instances all wait for one of these models.
    fn stuck(&self) -> HashSet<&str> {
        let mut stuck: HashSet<&str> = self.instances.values().map(|instance| instance.model.as_str()).collect();
        loop {
            let is_free = |instance: &&Instance| !instance.calls.values().any(|call| call.waits_for(&stuck));
            let free: HashSet<&str> = self.instances.values().filter(is_free).map(|one| one.model.as_str()).collect();
            let before = stuck.len();
            stuck.retain(|model| !free.contains(model));
            if stuck.len() == before {
                return stuck;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Instances as `model`, and calls as `instance>model+model` in their order. `!` says that the call is refused.
    #[track_caller]
    fn check(instances: &str, calls: &str) {
        let waits = Arc::new(Waits::default());
        let waiters: Vec<Waiter> = instances.split_whitespace().map(|model| waits.instance(model)).collect();
        for (number, call) in calls.split_whitespace().enumerate() {
            let (call, is_refused) = call.strip_suffix('!').map_or((call, false), |call| (call, true));
            let (from, targets) = call.split_once('>').expect("an arrow");
            let from: usize = from.parse().expect("a number");
            let targets = targets.split('+').map(str::to_owned).collect();
            assert_eq!(
                waiters[from].begin(number as u64, targets, Cancel::new()),
                !is_refused,
                "{instances}: {calls}, {call}"
            );
        }
    }

    #[test]
    fn a_cycle_without_a_free_instance_is_refused() {
        check("a", "0>a!");
        check("a a", "0>a 1>a!");
        check("a b", "0>b 1>a!");
        check("a b b", "0>b 1>a 2>a!");
        check("a b c", "0>b 1>c 2>a!");
        check("a b", "0>c+b 1>d+a!");
    }

    #[test]
    fn an_instance_whose_answer_can_come_may_wait() {
        check("a b", "0>b");
        check("a", "0>b 0>c");
        check("a a", "0>a");
        check("a b c", "0>b 1>c 0>c");
        check("a b b", "0>b 1>a");
    }

    #[test]
    fn a_wait_that_has_ended_closes_no_cycle() {
        let waits = Arc::new(Waits::default());
        let (one, two) = (waits.instance("a"), waits.instance("b"));
        assert!(one.begin(1, vec!["b".to_owned()], Cancel::new()));
        assert!(!two.begin(1, vec!["a".to_owned()], Cancel::new()));
        one.end(1);
        assert!(two.begin(2, vec!["a".to_owned()], Cancel::new()));
        two.end_all();
        assert!(one.begin(2, vec!["b".to_owned()], Cancel::new()));
        drop(two);
        let three = waits.instance("b");
        assert!(!three.begin(1, vec!["a".to_owned()], Cancel::new()));
        drop(one);
        assert!(three.begin(1, vec!["a".to_owned()], Cancel::new()));
    }

    /// Instances as `model`, and calls as `instance>model` in their order, none of which is refused. Checks which calls are cancelled when that
    /// instance leaves.
    #[track_caller]
    fn check_leaving(instances: &str, calls: &str, leaves: usize, expect: &[usize]) {
        let waits = Arc::new(Waits::default());
        let mut waiters: Vec<Waiter> = instances.split_whitespace().map(|model| waits.instance(model)).collect();
        let begin = |call: &str| {
            let (from, target) = call.split_once('>').expect("an arrow");
            let cancel = Cancel::new();
            let waiter = &waiters[from.parse::<usize>().expect("a number")];
            assert!(waiter.begin(1, vec![target.to_owned()], cancel.clone()), "{instances}: {calls}");
            cancel
        };
        let cancels: Vec<Cancel> = calls.split_whitespace().map(begin).collect();
        drop(waiters.remove(leaves));
        let cancelled =
            cancels.iter().enumerate().filter(|(_, cancel)| cancel.is_cancelled()).map(|(number, _)| number);
        assert_eq!(cancelled.collect::<Vec<_>>(), expect, "{instances}: {calls}, {leaves} leaves");
    }

    #[test]
    fn a_cycle_that_closes_because_an_instance_leaves_is_opened() {
        check_leaving("a a", "0>a", 1, &[0]);
        check_leaving("a a a", "0>a", 1, &[]);
        check_leaving("a b c", "0>b", 2, &[]);
        check_leaving("a a b b", "0>b 2>a 3>c", 1, &[]);
        check_leaving("a a b", "0>c 2>a", 1, &[]);
    }

    #[test]
    fn one_call_of_a_cycle_is_cancelled_and_the_others_go_on() {
        let waits = Arc::new(Waits::default());
        let (one, two, third) = (waits.instance("a"), waits.instance("b"), waits.instance("b"));
        let (first, second) = (Cancel::new(), Cancel::new());
        assert!(one.begin(1, vec!["b".to_owned()], first.clone()));
        assert!(two.begin(1, vec!["a".to_owned()], second.clone()));
        drop(third);
        assert!(first.is_cancelled() != second.is_cancelled());
    }
}
