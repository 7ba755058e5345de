//! Does a model wait for itself?
//!
//! A model that asks another waits in its instance. If all instances of a model wait, and each for a model of which the same holds, no
//! answer can come: the request that would close the circle is refused. Pure but for the lock.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;

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
    /// The models that it waits for, by its own number of the request.
    calls: HashMap<u64, Vec<String>>,
}

/// One instance, as long as it is there.
#[derive(Debug)]
pub struct Waiter {
    waits: Arc<Waits>,
    number: u64,
}

impl Waits {
    /// One more instance of a model.
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
    /// The instance waits for the answer of these models to its request `call`. `false`, and it does not, if that could never come.
    pub fn begin(&self, call: u64, targets: Vec<String>) -> bool {
        let mut state = self.waits.lock();
        let Some(instance) = state.instances.get_mut(&self.number) else { return true };
        let model = instance.model.clone();
        instance.calls.insert(call, targets);
        if !state.stuck().contains(model.as_str()) {
            return true;
        }
        if let Some(instance) = state.instances.get_mut(&self.number) {
            instance.calls.remove(&call);
        }
        false
    }

    /// The answer has come, or is not wanted any more.
    pub fn end(&self, call: u64) {
        if let Some(instance) = self.waits.lock().instances.get_mut(&self.number) {
            instance.calls.remove(&call);
        }
    }

    /// None is wanted any more: its process has ended.
    pub fn end_all(&self) {
        if let Some(instance) = self.waits.lock().instances.get_mut(&self.number) {
            instance.calls.clear();
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.waits.lock().instances.remove(&self.number);
    }
}

impl State {
    /// The models of which every instance waits for one of these models.
    fn stuck(&self) -> HashSet<&str> {
        let mut stuck: HashSet<&str> = self.instances.values().map(|instance| instance.model.as_str()).collect();
        loop {
            let is_free =
                |instance: &&Instance| !instance.calls.values().flatten().any(|target| stuck.contains(target.as_str()));
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

    /// Instances as `model`, and calls as `instance>model+model` in their order; `!` says that the call is refused.
    #[track_caller]
    fn check(instances: &str, calls: &str) {
        let waits = Arc::new(Waits::default());
        let waiters: Vec<Waiter> = instances.split_whitespace().map(|model| waits.instance(model)).collect();
        for (number, call) in calls.split_whitespace().enumerate() {
            let (call, is_refused) = call.strip_suffix('!').map_or((call, false), |call| (call, true));
            let (from, targets) = call.split_once('>').expect("an arrow");
            let from: usize = from.parse().expect("a number");
            let targets = targets.split('+').map(str::to_owned).collect();
            assert_eq!(waiters[from].begin(number as u64, targets), !is_refused, "{instances}: {calls}, {call}");
        }
    }

    #[test]
    fn a_circle_without_a_free_instance_is_refused() {
        check("a", "0>a!");
        check("a a", "0>a 1>a!");
        check("a b", "0>b 1>a!");
        check("a b b", "0>b 1>a 2>a!");
        check("a b c", "0>b 1>c 2>a!");
        check("a b", "0>c+b 1>d+a!");
    }

    #[test]
    fn who_can_still_be_answered_may_wait() {
        check("a b", "0>b");
        check("a", "0>b 0>c");
        check("a a", "0>a");
        check("a b c", "0>b 1>c 0>c");
        check("a b b", "0>b 1>a");
    }

    #[test]
    fn what_has_ended_is_waited_for_no_more() {
        let waits = Arc::new(Waits::default());
        let (one, two) = (waits.instance("a"), waits.instance("b"));
        assert!(one.begin(1, vec!["b".to_owned()]));
        assert!(!two.begin(1, vec!["a".to_owned()]));
        one.end(1);
        assert!(two.begin(2, vec!["a".to_owned()]));
        two.end_all();
        assert!(one.begin(2, vec!["b".to_owned()]));
        drop(two);
        let three = waits.instance("b");
        assert!(!three.begin(1, vec!["a".to_owned()]));
        drop(one);
        assert!(three.begin(1, vec!["a".to_owned()]));
    }
}
