//! How do decisions of the scheduler become runs, and what is reported back to it?

use std::sync::Weak;

use nerite_backend::Jobs;
use nerite_schedule::{InstanceId, RunSlot};

use super::awaited::WatchedInstance;
use super::limited::Limited;
use super::{Run, State};
use crate::response_order::ResponseOrder;
use crate::timer::now_us;

impl State {
    /// The next run that the scheduler decided and that has the resources it needs.
    pub(super) fn next_run(&mut self) -> Option<Run> {
        loop {
            if self.order.as_ref().is_some_and(ResponseOrder::is_full) {
                return None;
            }
            let Some(run) = self.next_decided() else {
                let at = self.limited.as_mut().and_then(Limited::next_withheld)?;
                self.grant(at);
                continue;
            };
            let Some(limited) = &mut self.limited else { return Some(run) };
            if let Some(run) = limited.pass(run) {
                return Some(run);
            }
            self.withhold_idle();
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
        if self.leaving.contains(&at.0) {
            return self.finish_removal(at.0, instance);
        }
        if instance.is_down() {
            self.note_down(at.0);
        }
        if let Some(place) = self.instances.get_mut(at.0) {
            *place = Some(instance);
        }
        if let Some(limited) = &mut self.limited {
            limited.release(at);
        }
        if self.limited.as_mut().is_none_or(|limited| limited.may_grant(at)) {
            self.grant(at);
        }
    }
}
