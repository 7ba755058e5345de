//! What happens to an instance whose process has died, until the next one is up?
//!
//! It is not granted to the scheduler while another instance is up, so requests go to that one. If no instance is up, all are granted as usual:
//! requests wait until a process has started there, or get the error of the start. A scheduler that binds sequences to instances still gets the
//! instance, and a report that it is down. New sequences go to other instances. The requests of sequences that are bound to this one wait for the
//! start, or get its error. Without the instance they could wait for ever.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use nerite_backend::Readiness;
use nerite_schedule::{InstanceChange, InstanceId};

use super::{Shared, State};
use crate::timer::now_us;

/// The instances of a pool that are down.
#[derive(Default)]
pub(super) struct Down {
    numbers: HashSet<usize>,
    /// Those that are idle and not granted.
    withheld: HashSet<usize>,
    /// Those that were reported to the scheduler, if it binds.
    reported: HashSet<usize>,
    /// What reports changes, by the number of the instance. The number of a removed instance may be given to another one.
    reporters: HashMap<usize, Weak<dyn Readiness>>,
}

impl Down {
    /// Whether the instance with this number is down.
    pub fn contains(&self, number: usize) -> bool {
        self.numbers.contains(&number)
    }
}

impl Shared {
    /// Has the instance with this number report when its process has died, and when another one is up.
    pub(super) fn watch_process(self: &Arc<Self>, number: usize, readiness: Option<Arc<dyn Readiness>>) {
        let Some(readiness) = readiness else { return };
        let (pool, whom) = (Arc::downgrade(self), Arc::downgrade(&readiness));
        self.lock().down.reporters.insert(number, Weak::clone(&whom));
        readiness.watch(Box::new(move || {
            if let (Some(pool), Some(readiness)) = (pool.upgrade(), Weak::upgrade(&whom)) {
                pool.process_changed(number, &readiness);
            }
        }));
        // It may have died before it was watched.
        self.process_changed(number, &readiness);
    }

    fn process_changed(self: &Arc<Self>, number: usize, readiness: &Arc<dyn Readiness>) {
        let mut state = self.lock();
        let reporter = state.down.reporters.get(&number);
        if !reporter.is_some_and(|reporter| reporter.ptr_eq(&Arc::downgrade(readiness))) {
            return;
        }
        // The state is read while the pool is locked, so the last call sees the newest state.
        let has_changed =
            if readiness.is_down() { state.down.numbers.insert(number) } else { state.down.numbers.remove(&number) };
        if !has_changed {
            return;
        }
        state.settle_down();
        let work = self.settle(&mut state, false);
        drop(state);
        self.carry_out(work);
    }
}

impl State {
    /// Grants an idle instance to the scheduler, unless it is down and another one is up.
    pub(super) fn grant(&mut self, at: InstanceId) {
        if !self.driver.binds() && self.down.contains(at.0) && self.is_any_up() {
            self.down.withheld.insert(at.0);
        } else {
            self.offer(at);
        }
    }

    /// Notes that an instance that is given back is down.
    pub(super) fn note_down(&mut self, number: usize) {
        if self.down.numbers.insert(number) {
            self.settle_down();
        }
    }

    /// Forgets a removed instance. Returns whether it was idle and not granted.
    pub(super) fn forget_down(&mut self, number: usize) -> bool {
        self.down.reporters.remove(&number);
        self.down.numbers.remove(&number);
        if self.driver.binds() {
            self.report_down();
        }
        self.down.withheld.remove(&number)
    }

    /// Withdraws instances that are down, and grants those that are to be used.
    pub(super) fn settle_down(&mut self) {
        if self.driver.binds() {
            return self.report_down();
        }
        let is_any_up = self.is_any_up();
        let is_unused = |number: &usize, down: &Down| is_any_up && down.contains(*number);
        let mut used: Vec<usize> = self.down.withheld.iter().copied().collect();
        used.retain(|number| !is_unused(number, &self.down));
        for number in used {
            self.down.withheld.remove(&number);
            self.offer(InstanceId(number));
        }
        let unused: Vec<usize> = self.down.numbers.iter().copied().filter(|one| is_unused(one, &self.down)).collect();
        for number in unused {
            // One that runs is withheld when it is given back.
            if self.withdraw(InstanceId(number)) {
                self.down.withheld.insert(number);
            }
        }
    }

    /// Reports to a scheduler that binds which instances are down while another one is up.
    fn report_down(&mut self) {
        let down = if self.is_any_up() { self.down.numbers.clone() } else { HashSet::new() };
        let reported = std::mem::replace(&mut self.down.reported, down.clone());
        let [gone_down, come_up] = [down.difference(&reported), reported.difference(&down)];
        for (change, changed) in [(InstanceChange::Down, gone_down), (InstanceChange::Up, come_up)] {
            changed.for_each(|number| self.driver.change(InstanceId(*number), change, now_us()));
        }
    }

    /// Whether an instance is up, idle or not.
    fn is_any_up(&self) -> bool {
        let is_there = |number: &usize| !self.leaving.contains(number) && !self.empty.contains(number);
        (0..self.instances.len()).filter(is_there).any(|number| !self.down.contains(number))
    }
}
