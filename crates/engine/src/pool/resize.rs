//! How do instances come and go while requests run?

use std::sync::{Arc, PoisonError};

use nerite_backend::Instance;
use nerite_schedule::InstanceId;

use super::{Pool, Shared, State};
use crate::policies::Cores;
use crate::timer::now_us;

impl Pool {
    /// Adds instances, which may run at once, each on its cores. Gives their numbers.
    pub fn add(&self, instances: Vec<Box<dyn Instance>>, cores: Vec<Option<Arc<Cores>>>) -> Vec<usize> {
        let mut state = self.0.lock();
        let numbers: Vec<usize> = instances.into_iter().map(|instance| state.seat(instance)).collect();
        if let Some(known) = &self.0.cores {
            numbers.iter().zip(cores).for_each(|(number, cores)| known.put(*number, cores));
        }
        for number in &numbers {
            state.driver.grant(InstanceId(*number), now_us());
        }
        let work = self.0.settle(&mut state, false);
        drop(state);
        self.0.carry_out(work);
        numbers
    }

    /// Takes instances away, each once it runs nothing, and ends them. Not on a front end's thread. Those that stay go on.
    pub fn remove(&self, numbers: &[usize]) {
        let mut state = self.0.lock();
        for number in numbers {
            state.workers_max = state.workers_max.saturating_sub(1);
            state.unseat(*number);
        }
        while numbers.iter().any(|number| state.leaving.contains(number)) {
            state = self.0.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let gone = std::mem::take(&mut state.gone);
        drop(state);
        // Workers that are too many end.
        self.0.wake.notify_all();
        drop(gone);
    }
}

impl State {
    /// A place for an instance: one that was left, or a new one.
    fn seat(&mut self, instance: Box<dyn Instance>) -> usize {
        self.workers_max += 1;
        if let Some(number) = self.empty.pop() {
            self.instances[number] = Some(instance);
            return number;
        }
        self.instances.push(Some(instance));
        self.instances.len() - 1
    }

    fn unseat(&mut self, number: usize) {
        if !self.driver.withdraw(InstanceId(number), now_us()) {
            // It runs, or is about to: what is decided finds it in its place.
            self.leaving.insert(number);
        } else if let Some(instance) = self.instances.get_mut(number).and_then(Option::take) {
            self.gone.push(instance);
            self.empty.push(number);
        }
    }

    /// An instance came back that was to leave: whoever waits for that ends it.
    pub(super) fn let_go(&mut self, number: usize, instance: Box<dyn Instance>) {
        self.leaving.remove(&number);
        self.gone.push(instance);
        self.empty.push(number);
    }
}

impl Shared {
    /// Tells whoever waits for instances that are to leave.
    pub(super) fn tell_left(&self, state: &State) {
        if !state.gone.is_empty() {
            self.left.notify_all();
        }
    }

    /// Whether a worker that has nothing to do should end: there are more than instances.
    pub(super) fn is_spare(state: &State) -> bool {
        state.workers > state.workers_max
    }
}
