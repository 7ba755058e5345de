//! Which request runs next if requests are not batched?

use std::collections::BTreeSet;

use crate::{Batch, Context, Event, InstanceId, Rejection, Scheduler, Ticket};

/// Triton's default scheduler: each request runs alone, in the order of arrival, on any instance that may start.
#[derive(Clone, Debug, Default)]
pub struct Fifo {
    /// Tickets ascend, so the smallest one is the oldest, and a ticket is found without walking the queue.
    waiting: BTreeSet<Ticket>,
    /// The instance that was granted last is at the end and runs next, because its memory is still in the caches.
    granted: Vec<InstanceId>,
    /// The most waiting requests. `None` for no limit.
    requests_max: Option<usize>,
    stopped: bool,
}

impl Fifo {
    /// A scheduler without requests.
    pub fn new() -> Fifo {
        Fifo::default()
    }

    /// The same, with a limit on waiting requests.
    pub fn bounded(requests_max: usize) -> Fifo {
        Fifo { requests_max: Some(requests_max), ..Fifo::default() }
    }

    fn is_full(&self) -> bool {
        self.granted.is_empty() && self.requests_max.is_some_and(|limit| self.waiting.len() >= limit)
    }

    fn start(&mut self, context: &mut Context<'_>) {
        while !self.waiting.is_empty()
            && let Some(instance) = self.granted.pop()
        {
            let Some(oldest) = self.waiting.pop_first() else { return };
            context.run(Batch::of_one(instance, oldest));
        }
    }
}

impl Scheduler for Fifo {
    fn handle(&mut self, event: Event, context: &mut Context<'_>) {
        match event {
            Event::Arrived(arrival) if self.stopped => context.reject(arrival.ticket, Rejection::Stopping),
            Event::Arrived(arrival) if self.is_full() => context.reject(arrival.ticket, Rejection::Overloaded),
            Event::Arrived(arrival) => {
                self.waiting.insert(arrival.ticket);
                self.start(context);
            }
            Event::Granted(instance) => {
                self.granted.push(instance);
                self.start(context);
            }
            Event::Withdrawn(instance) => self.granted.retain(|granted| *granted != instance),
            Event::Cancelled(ticket) => {
                if self.waiting.remove(&ticket) {
                    context.reject(ticket, Rejection::Cancelled);
                }
            }
            Event::Stop => self.stopped = true,
            Event::Done(_) | Event::Time | Event::Answered => {}
        }
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arrival, Driver};

    /// Each event of a test is a word: `+3` job 3 arrives, `i0` instance 0 may start (and is done first, if it runs), `-3` job 3 is cancelled,
    /// `stop`, `drained`. The expected decisions: `3@0` job 3 runs on instance 0, `3!` it is rejected, `.` no decision, `no`, `yes`.
    #[track_caller]
    fn check(instances: usize, play: &[(&str, &str)]) {
        check_of(Fifo::new(), instances, play);
    }

    #[track_caller]
    fn check_of(fifo: Fifo, instances: usize, play: &[(&str, &str)]) {
        let mut driver = Driver::new(Box::new(fifo));
        (0..instances).rev().for_each(|instance| driver.grant(InstanceId(instance), 0));
        let (mut running, mut tickets) = (BTreeSet::new(), std::collections::HashMap::new());
        for (number, (event, expect)) in play.iter().enumerate() {
            let argument = || event[1..].parse::<u64>().expect("the play writes numbers");
            match *event {
                "stop" => driver.stop(0),
                _ if event.starts_with('w') => {
                    let was_granted = driver.withdraw(InstanceId(argument() as usize), 0);
                    assert_eq!(if was_granted { "yes" } else { "no" }, *expect, "event {number} of {play:?}");
                    continue;
                }
                "drained" => {
                    assert_eq!(if driver.is_drained() { "yes" } else { "no" }, *expect, "event {number} of {play:?}");
                    continue;
                }
                _ if event.starts_with('+') => {
                    tickets.insert(argument(), driver.arrive(argument(), |ticket| Arrival::new(ticket, 1), 0));
                }
                _ if event.starts_with('-') => driver.cancel(tickets[&argument()], 0),
                _ => {
                    let instance = InstanceId(argument() as usize);
                    if running.remove(&instance) {
                        driver.done(instance, 0);
                    }
                    driver.grant(instance, 0);
                }
            }
            let mut shown = Vec::new();
            while let Some(run) = driver.next_run() {
                running.insert(run.instance);
                shown.extend(run.jobs().map(|job| format!("{job}@{}", run.instance.0)));
            }
            while let Some((job, _)) = driver.next_rejected() {
                shown.push(format!("{job}!"));
            }
            let shown = if shown.is_empty() { ".".to_owned() } else { shown.join(" ") };
            assert_eq!(shown, *expect, "event {number}, {event}, of {play:?}");
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
    fn a_cancelled_request_is_rejected_once_and_one_that_runs_goes_on() {
        check(1, &[("+1", "1@0"), ("+2", "."), ("+3", "."), ("-2", "2!"), ("-2", "."), ("-1", "."), ("i0", "3@0")]);
    }

    #[test]
    fn a_removed_instance_runs_no_more_requests() {
        check(2, &[("+1", "1@0"), ("w0", "no"), ("w1", "yes"), ("+2", "."), ("i0", "2@0"), ("w1", "no"), ("i1", ".")]);
    }

    #[test]
    fn a_stop_rejects_the_new_and_runs_the_waiting() {
        check(
            1,
            &[
                ("drained", "yes"),
                ("+1", "1@0"),
                ("+2", "."),
                ("stop", "."),
                ("+3", "3!"),
                ("drained", "no"),
                ("i0", "2@0"),
                ("drained", "no"),
                ("i0", "."),
                ("drained", "yes"),
            ],
        );
    }

    #[test]
    fn a_full_queue_takes_none_until_one_has_left() {
        let bounded = || Fifo::bounded(1);
        check_of(
            bounded(),
            1,
            &[("+1", "1@0"), ("+2", "."), ("+3", "3!"), ("i0", "2@0"), ("+4", "."), ("-4", "4!"), ("+5", ".")],
        );
        check_of(Fifo::bounded(0), 1, &[("+1", "1@0"), ("+2", "2!"), ("i0", "."), ("+3", "3@0")]);
    }

    #[test]
    fn without_instances_everything_waits() {
        check(0, &[("+1", "."), ("-1", "1!"), ("drained", "yes"), ("+2", "."), ("i0", "2@0")]);
    }

    #[test]
    fn rejections_have_tritons_texts() {
        assert!(Rejection::Stopping.sentence().starts_with("Server is stopping, scheduler for model has stopped"));
        assert_eq!(Rejection::Full.sentence(), "Exceeds maximum queue size");
        assert_eq!(Rejection::TimedOut.sentence(), "Request timeout expired");
    }
}
