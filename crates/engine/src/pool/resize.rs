//! How do instances come and go while requests run?

use std::panic::{AssertUnwindSafe, catch_unwind};
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

    /// Takes instances away: none of them begins anything new, and each is ended once it runs nothing, on a thread of its own. Nobody
    /// waits for that but [`Pool::close`]: what an instance runs may need the model whose load took it away.
    pub fn remove(&self, numbers: &[usize]) {
        let mut state = self.0.lock();
        for number in numbers {
            state.unseat(*number);
        }
        let is_left = state.gone.is_empty() && state.leaving.is_empty();
        if is_left || std::mem::replace(&mut state.is_ending, true) {
            self.0.tell_left(&state);
            return;
        }
        drop(state);
        let shared = Arc::clone(&self.0);
        match std::thread::Builder::new().name("nerite-resize".to_owned()).spawn(move || shared.end_those_that_leave())
        {
            Ok(thread) => self.0.keep_thread(thread),
            Err(error) => {
                self.0.lock().is_ending = false;
                log::error!("no thread to end instances of '{}': {error}; they end at its next load", self.0.name);
            }
        }
    }

    /// Instances that were taken away and still run.
    pub fn leaving(&self) -> usize {
        self.0.lock().leaving.len()
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
            self.lose(number, instance);
        }
    }

    /// An instance came back that was to leave.
    pub(super) fn let_go(&mut self, number: usize, instance: Box<dyn Instance>) {
        self.leaving.remove(&number);
        self.lose(number, instance);
    }

    fn lose(&mut self, number: usize, instance: Box<dyn Instance>) {
        self.gone.push(instance);
        self.empty.push(number);
        // Until now a worker was needed for it.
        self.workers_max = self.workers_max.saturating_sub(1);
    }
}

impl Shared {
    /// Ends instances that left, until none is to leave any more.
    fn end_those_that_leave(&self) {
        let mut state = self.lock();
        loop {
            let gone = std::mem::take(&mut state.gone);
            if !gone.is_empty() {
                drop(state);
                // Workers that are too many end.
                self.wake.notify_all();
                self.end(gone);
                state = self.lock();
            } else if state.leaving.is_empty() {
                state.is_ending = false;
                return;
            } else {
                state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Ends these instances here.
    pub(super) fn end(&self, instances: Vec<Box<dyn Instance>>) {
        if catch_unwind(AssertUnwindSafe(|| drop(instances))).is_err() {
            log::error!("an instance of model '{}' panicked when it ended", self.name);
        }
    }

    /// Tells the thread that ends instances.
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
