//! How do decisions of the scheduler become runs, and what is reported back to it?

use std::sync::Weak;

use nerite_backend::Jobs;
use nerite_schedule::{InstanceId, RunSlot};

use super::awaited::WatchedInstance;
use super::{Run, State};
use crate::timer::now_us;

impl State {
    /// The next run that the scheduler decided and that has the resources it needs.
    pub(super) fn next_run(&mut self) -> Option<Run> {
        loop {
            let run = if self.may_start() { self.next_decided() } else { None };
            if run.is_some() || !self.grant_limited() {
                return run;
            }
        }
    }

    /// The jobs and the instance of the run that the scheduler decided next.
    fn next_decided(&mut self) -> Option<Run> {
        let nerite_schedule::Run { instance: at, slots } = self.driver.next_run()?;
        let (mut jobs, mut numbers, mut size, mut flow) = (Jobs::with_capacity(slots.len()), Vec::new(), None, None);
        let (mut empty, together) = self.empty_positions(&slots);
        for slot in slots {
            match slot {
                RunSlot::Job(mut queued, controls) => {
                    (size, flow) = if jobs.is_empty() { (queued.size, queued.flow.take()) } else { (None, None) };
                    if let (Some(repeats), Some(controls)) = (&self.repeats, &controls) {
                        queued.job.may_run_again(Weak::clone(repeats), controls.state);
                    }
                    if let (Some(sequences), Some(controls)) = (&self.sequences, controls) {
                        sequences.set_controls(&mut queued.job, &controls);
                        sequences.let_run_on(&mut queued.job, together.as_ref());
                    }
                    jobs.push(queued.job);
                    if self.order.is_some() {
                        numbers.push(queued.number);
                    }
                }
                RunSlot::Empty => jobs.extend(empty.next()),
            }
        }
        self.keep_order(&numbers, &mut jobs);
        let instance = self.instances.get_mut(at.0).and_then(Option::take);
        let instance = instance.expect("the scheduler names instances that it was granted");
        Some(Run { at, instance, jobs, size, flow, begun: None })
    }

    /// Takes an instance back, so that it may run again at once.
    pub(super) fn give_back(&mut self, at: InstanceId, instance: WatchedInstance) {
        let now_us = now_us();
        let cut_short = self.sequences.as_ref().map(|sequences| sequences.take_cut_short());
        cut_short.into_iter().flatten().for_each(|sequence| self.driver.cut_short(sequence, now_us));
        self.driver.done(at, now_us);
        let is_leaving = self.leaving.contains(&at.0);
        if is_leaving && !self.driver.binds() {
            return self.finish_removal(at.0, instance);
        }
        if instance.is_down() && !is_leaving {
            self.note_down(at.0);
        }
        if let Some(place) = self.instances.get_mut(at.0) {
            *place = Some(instance);
        }
        self.grant(at);
        self.release(at);
        self.remove_unbound();
    }
}
