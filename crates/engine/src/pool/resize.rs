//! How are instances added and removed while requests run?

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};

use nerite_backend::Instance;
use nerite_schedule::{InstanceChange, InstanceId};

use super::awaited::WatchedInstance;
use super::{Pool, Shared, State};
use crate::policies::Cores;
use crate::rates::Claimed;
use crate::timer::now_us;

impl Pool {
    /// Adds instances, each with its cores, and with its claim if the instances share resources. They may run at once. Returns their numbers.
    pub fn add(
        &self,
        instances: Vec<Box<dyn Instance>>,
        cores: Vec<Option<Arc<Cores>>>,
        claimed: Vec<Claimed>,
    ) -> Vec<usize> {
        let watched: Vec<_> = instances.iter().map(|instance| instance.readiness()).collect();
        let mut state = self.0.lock();
        let numbers: Vec<usize> = instances.into_iter().map(|instance| state.add(instance.into())).collect();
        if let Some(known) = &self.0.cores {
            numbers.iter().zip(cores).for_each(|(number, cores)| known.put(*number, cores));
        }
        if let Some(limited) = &mut state.limited {
            numbers.iter().zip(claimed).for_each(|(number, claimed)| limited.put(InstanceId(*number), claimed));
        }
        for number in &numbers {
            state.driver.change(InstanceId(*number), InstanceChange::Added, now_us());
            state.offer(InstanceId(*number));
        }
        // The new instances are up, so those that are down are not needed any more.
        state.settle_down();
        let work = self.0.settle(&mut state, false);
        drop(state);
        self.0.carry_out(work);
        numbers.iter().zip(watched).for_each(|(number, readiness)| self.0.watch_process(*number, readiness));
        numbers
    }

    /// Removes instances. A removed instance takes no new sequence, and runs only requests of sequences that have a slot there. It is dropped on another
    /// thread once it is idle and those sequences are over. Only [`Pool::wait_for_removed`] and [`Pool::close`] wait for that: the run of an instance may
    /// need the model whose load removes the instance.
    pub fn remove(&self, numbers: &[usize]) {
        let mut state = self.0.lock();
        for number in numbers {
            state.remove(*number);
        }
        // The last instance that was up may be among the removed ones.
        state.settle_down();
        let work = self.0.settle(&mut state, false);
        drop(state);
        self.0.carry_out(work);
        let mut state = self.0.lock();
        let is_left = state.gone.is_empty() && state.leaving.is_empty();
        if is_left || std::mem::replace(&mut state.is_ending, true) {
            self.0.notify_left(&state);
            return;
        }
        drop(state);
        let shared = Arc::clone(&self.0);
        match std::thread::Builder::new().name("nerite-resize".to_owned()).spawn(move || shared.drop_removed()) {
            Ok(thread) => self.0.keep_thread(thread),
            Err(error) => {
                self.0.lock().is_ending = false;
                log::error!("no thread to end instances of '{}': {error}; they end at its next load", self.0.name);
            }
        }
    }

    /// Returns when the removed instances are gone, after the runs that they are in. Those with sequences are not waited for: a sequence may go on for
    /// ever.
    pub fn wait_for_removed(&self) {
        let mut state = self.0.lock();
        while state.is_ending && state.has_awaited_removals() {
            state = self.0.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Removed instances that still run or have sequences.
    pub fn leaving(&self) -> usize {
        self.0.lock().leaving.len()
    }
}

impl State {
    /// Gives an instance the number of a removed one, or a new number.
    fn add(&mut self, instance: WatchedInstance) -> usize {
        self.workers_max += 1;
        if let Some(number) = self.empty.pop() {
            self.instances[number] = Some(instance);
            return number;
        }
        self.instances.push(Some(instance));
        self.instances.len() - 1
    }

    fn remove(&mut self, number: usize) {
        self.leaving.insert(number);
        // If the instance is reported as up again, it must not get sequences.
        self.driver.change(InstanceId(number), InstanceChange::Removed, now_us());
        let is_withheld = self.forget_down(number);
        if self.driver.binds() {
            self.remove_unbound();
        } else if is_withheld || self.withdraw(InstanceId(number)) {
            self.take_removed(number);
        }
        // Otherwise it runs or is about to run, or has sequences. It stays in its place until that is over.
    }

    /// Drops removed instances to which the scheduler binds no sequence any more.
    pub(super) fn remove_unbound(&mut self) {
        for at in self.driver.take_unbound() {
            self.withdraw(at);
            self.take_removed(at.0);
        }
    }

    fn take_removed(&mut self, number: usize) {
        if let Some(instance) = self.instances.get_mut(number).and_then(Option::take) {
            self.finish_removal(number, instance);
        }
    }

    /// Whether a removed instance is to be waited for.
    fn has_awaited_removals(&self) -> bool {
        self.is_dropping || !self.gone.is_empty() || !self.driver.binds() && !self.leaving.is_empty()
    }

    /// Has a removed instance dropped, which does not run.
    pub(super) fn finish_removal(&mut self, number: usize, instance: WatchedInstance) {
        self.leaving.remove(&number);
        self.gone.push(instance);
        if let Some(limited) = &mut self.limited {
            limited.forget(InstanceId(number));
        }
        self.empty.push(number);
        // Until now the instance needed a worker.
        self.workers_max = self.workers_max.saturating_sub(1);
    }
}

impl Shared {
    /// Drops removed instances until there are none left.
    fn drop_removed(&self) {
        let mut state = self.lock();
        loop {
            let gone = std::mem::take(&mut state.gone);
            state.is_dropping = !gone.is_empty();
            if state.is_dropping {
                drop(state);
                // Wakes the workers, so that surplus ones end.
                self.wake.notify_all();
                self.end(gone);
                state = self.lock();
                // Some may remain that nothing waits for.
                state.is_dropping = false;
                self.left.notify_all();
            } else if state.leaving.is_empty() {
                state.is_ending = false;
                self.left.notify_all();
                return;
            } else {
                state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Drops these instances on this thread.
    pub(super) fn end(&self, instances: Vec<WatchedInstance>) {
        if catch_unwind(AssertUnwindSafe(|| drop(instances))).is_err() {
            log::error!("an instance of model '{}' panicked when it ended", self.name);
        }
    }

    /// Notifies the thread that drops removed instances.
    pub(super) fn notify_left(&self, state: &State) {
        if !state.gone.is_empty() {
            self.left.notify_all();
        }
    }

    /// Whether an idle worker should end because there are more workers than instances.
    pub(super) fn is_spare(state: &State) -> bool {
        // Those that are being started do not count: the system may refuse their threads, and runs that were begun need a worker.
        state.serving > state.workers_max
    }
}
