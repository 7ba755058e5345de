//! Who runs next where nothing is batched?

use std::collections::BTreeSet;

use crate::{Arrival, Batch, InstanceId, Refusal, Scheduler, Step, Ticket};

/// Triton's default scheduler: each request alone, in the order they came, on whichever instance is idle.
#[derive(Clone, Debug)]
pub struct Fifo {
    /// Tickets ascend, so the least is the oldest, and one is found without walking the queue.
    waiting: BTreeSet<Ticket>,
    /// The one that became idle last is at the end and runs next: its memory is still warm.
    idle: Vec<InstanceId>,
    instances: usize,
    open: bool,
}

impl Fifo {
    /// The scheduler of so many instances.
    pub fn new(instances: usize) -> Fifo {
        let idle = (0..instances).rev().map(InstanceId).collect();
        Fifo { waiting: BTreeSet::new(), idle, instances, open: true }
    }
}

impl Scheduler for Fifo {
    fn arrive(&mut self, arrival: Arrival, now_us: u64) -> Result<Step, Refusal> {
        if !self.open {
            return Err(Refusal::Stopping);
        }
        let newest = self.waiting.last().is_none_or(|last| *last < arrival.ticket);
        assert!(newest, "the driver hands out tickets in ascending order, got {:?}", arrival.ticket);
        self.waiting.insert(arrival.ticket);
        Ok(self.turn(now_us))
    }

    fn idle(&mut self, instance: InstanceId, now_us: u64) -> Step {
        assert!(instance.0 < self.instances, "there are {} instances, got {instance:?}", self.instances);
        assert!(!self.idle.contains(&instance), "{instance:?} was idle already");
        self.idle.push(instance);
        self.turn(now_us)
    }

    fn turn(&mut self, _now_us: u64) -> Step {
        if self.idle.is_empty() {
            return Step::Wait { until_us: None };
        }
        let Some(oldest) = self.waiting.pop_first() else { return Step::Wait { until_us: None } };
        let instance = self.idle.pop().expect("it was just seen not to be empty");
        Step::Run(Batch { instance, oldest, others: Vec::new() })
    }

    fn cancel(&mut self, ticket: Ticket) -> bool {
        self.waiting.remove(&ticket)
    }

    fn stop(&mut self) {
        self.open = false;
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn is_drained(&self) -> bool {
        self.waiting.is_empty() && self.idle.len() == self.instances
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events of a play: `+3` ticket 3 arrives, `i0` instance 0 is idle, `-3` ticket 3 is cancelled, `stop`, `?` time passes,
    /// `drained`. Answers: `3@0` ticket 3 runs on instance 0, `.` nothing, `no` refused or not found, `yes`.
    #[track_caller]
    fn check(instances: usize, play: &[(&str, &str)]) {
        let mut fifo = Fifo::new(instances);
        for (number, (event, expect)) in play.iter().enumerate() {
            assert_eq!(happen(&mut fifo, event), *expect, "event {number}, {event}, of {play:?}");
        }
    }

    fn happen(fifo: &mut Fifo, event: &str) -> String {
        let number = || event[1..].parse::<u64>().expect("the play writes numbers");
        let truth = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        match event {
            "stop" => {
                fifo.stop();
                ".".to_owned()
            }
            "drained" => truth(fifo.is_drained()),
            "?" => shown(fifo.turn(1_000_000)),
            _ if event.starts_with('+') => {
                let arrival = Arrival { ticket: Ticket(number()), rows: 1 };
                fifo.arrive(arrival, 0).map_or_else(|_| "no".to_owned(), shown)
            }
            _ if event.starts_with('-') => truth(fifo.cancel(Ticket(number()))),
            _ => shown(fifo.idle(InstanceId(number() as usize), 0)),
        }
    }

    fn shown(step: Step) -> String {
        match step {
            Step::Run(batch) if batch.others.is_empty() => format!("{}@{}", batch.oldest.0, batch.instance.0),
            Step::Run(batch) => panic!("nothing is batched here: {batch:?}"),
            Step::Wait { until_us } => {
                assert_eq!(until_us, None, "time changes nothing here");
                ".".to_owned()
            }
        }
    }

    #[test]
    fn requests_run_in_the_order_they_came() {
        check(1, &[("+1", "1@0"), ("+2", "."), ("+3", "."), ("i0", "2@0"), ("i0", "3@0"), ("i0", "."), ("+4", "4@0")]);
    }

    #[test]
    fn every_instance_takes_one() {
        check(3, &[("+1", "1@0"), ("+2", "2@1"), ("+3", "3@2"), ("+4", "."), ("i1", "4@1"), ("i0", "."), ("i2", ".")]);
    }

    #[test]
    fn the_instance_that_ran_last_runs_next() {
        check(
            3,
            &[("+1", "1@0"), ("+2", "2@1"), ("i0", "."), ("i1", "."), ("+3", "3@1"), ("+4", "4@0"), ("+5", "5@2")],
        );
    }

    #[test]
    fn a_cancelled_request_is_passed_over() {
        check(1, &[("+1", "1@0"), ("+2", "."), ("+3", "."), ("-2", "yes"), ("-2", "no"), ("-1", "no"), ("i0", "3@0")]);
    }

    #[test]
    fn a_stop_refuses_the_new_and_runs_the_waiting() {
        check(
            1,
            &[
                ("drained", "yes"),
                ("+1", "1@0"),
                ("+2", "."),
                ("stop", "."),
                ("+3", "no"),
                ("drained", "no"),
                ("i0", "2@0"),
                ("drained", "no"),
                ("i0", "."),
                ("drained", "yes"),
            ],
        );
    }

    #[test]
    fn time_alone_starts_nothing() {
        check(1, &[("?", "."), ("+1", "1@0"), ("+2", "."), ("?", "."), ("i0", "2@0"), ("i0", "."), ("?", ".")]);
    }

    #[test]
    fn without_instances_everything_waits() {
        check(0, &[("+1", "."), ("?", "."), ("-1", "yes"), ("drained", "yes")]);
    }

    #[test]
    fn refusals_speak_as_triton_does() {
        assert!(Refusal::Stopping.sentence().starts_with("Server is stopping, scheduler for model has stopped"));
        assert_eq!(Refusal::Full.sentence(), "Exceeds maximum queue size");
    }

    #[test]
    #[should_panic(expected = "was idle already")]
    fn an_instance_is_not_idle_twice() {
        happen(&mut Fifo::new(1), "i0");
    }
}
