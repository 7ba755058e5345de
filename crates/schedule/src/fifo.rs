//! Which request runs next if requests are not batched?

use std::collections::HashMap;

use crate::fair_order::{FairOrder, Place};
use crate::granted::Granted;
use crate::occupancy::Occupancy;
use crate::{Arrival, Batch, Context, Event, InstanceId, Rejection, Scheduler, Ticket};

/// Triton's default scheduler: each request runs alone, on any instance that may start. The requests of one client run in the order of arrival, and
/// clients take turns.
#[derive(Clone, Debug, Default)]
pub struct Fifo {
    order: FairOrder,
    waiting: HashMap<Ticket, Waiting>,
    occupancy: Occupancy,
    granted: Granted,
    /// The most waiting requests, shared by [`Occupancy`]. `None` for no limit.
    requests_max: Option<usize>,
    stopped: bool,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    peer: u64,
    place: Place,
    prefers: Option<InstanceId>,
}

/// Each request is one turn, whatever its rows are, because it is one run.
const TURN_ROWS: u32 = 1;
/// A `Fifo` never looks at a prefix of the order.
const NO_PREFIX: u64 = 0;

impl Fifo {
    /// A scheduler without requests.
    pub fn new() -> Fifo {
        Fifo::default()
    }

    /// The same, with a limit on waiting requests.
    pub fn bounded(requests_max: usize) -> Fifo {
        Fifo { requests_max: Some(requests_max), ..Fifo::default() }
    }

    fn arrived(&mut self, arrival: &Arrival, context: &mut Context<'_>) {
        let Arrival { ticket, client, prefers, .. } = *arrival;
        // If an instance may start, no other request waits.
        if let Some(instance) = self.granted.take(prefers) {
            return context.run(Batch::of_one(instance, ticket));
        }
        if self.requests_max.is_some_and(|limit| !self.occupancy.has_place(client.peer, limit)) {
            return context.reject(ticket, Rejection::Overloaded);
        }
        let (place, _) = self.order.push(arrival.turns_of(), ticket, ticket.0, TURN_ROWS, NO_PREFIX);
        self.waiting.insert(ticket, Waiting { peer: client.peer, place, prefers });
        self.occupancy.add(client.peer);
    }

    fn cancelled(&mut self, ticket: Ticket, context: &mut Context<'_>) {
        if let Some(Waiting { peer, place, .. }) = self.waiting.remove(&ticket) {
            self.order.remove(place, NO_PREFIX);
            self.occupancy.remove(peer);
            context.reject(ticket, Rejection::Cancelled);
        }
    }

    fn start(&mut self, context: &mut Context<'_>) {
        while !self.granted.is_empty()
            && let Some(ticket) = self.order.take_first()
        {
            let Some(Waiting { peer, prefers, .. }) = self.waiting.remove(&ticket) else { return };
            self.occupancy.remove(peer);
            let Some(instance) = self.granted.take(prefers) else { return };
            context.run(Batch::of_one(instance, ticket));
        }
    }
}

impl Scheduler for Fifo {
    fn handle(&mut self, event: Event, context: &mut Context<'_>) {
        match event {
            Event::Arrived(arrival) if self.stopped => context.reject(arrival.ticket, Rejection::Stopping),
            Event::Arrived(arrival) => self.arrived(&arrival, context),
            Event::Granted(instance) => {
                self.granted.push(instance);
                self.start(context);
            }
            Event::Withdrawn(instance) => self.granted.withdraw(instance),
            Event::Cancelled(ticket) => self.cancelled(ticket, context),
            Event::Stop => self.stopped = true,
            Event::CutShort(_) | Event::Done(_) | Event::Changed(..) | Event::Time => {}
        }
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{Client, Driver};

    /// Each event of a test is a word: `+3` job 3 arrives, `+3>1` it prefers instance 1, `+3@7` it is of peer 7, `i0` instance 0 may start (and is
    /// done first, if it runs), `-3` job 3 is cancelled, `stop`, `drained`. The expected decisions: `3@0` job 3 runs on instance 0, `3!` it is
    /// rejected, `.` no decision, `no`, `yes`.
    #[track_caller]
    fn check(instances: usize, events: &[(&str, &str)]) {
        check_of(Fifo::new(), instances, events);
    }

    #[track_caller]
    fn check_of(fifo: Fifo, instances: usize, events: &[(&str, &str)]) {
        let mut driver = Driver::new(Box::new(fifo));
        (0..instances).rev().for_each(|instance| driver.grant(InstanceId(instance), 0));
        let (mut running, mut tickets) = (BTreeSet::new(), std::collections::HashMap::new());
        for (number, (event, expect)) in events.iter().enumerate() {
            let (event, peer) = event.split_once('@').unwrap_or((*event, "0"));
            let client = Client { peer: peer.parse().expect("a peer"), flow: 0 };
            let (event, prefers) = event.split_once('>').unwrap_or((event, ""));
            let argument = || event[1..].parse::<u64>().expect("an event ends with a number");
            match event {
                "stop" => driver.stop(0),
                _ if event.starts_with('w') => {
                    let was_granted = driver.withdraw(InstanceId(argument() as usize), 0);
                    assert_eq!(if was_granted { "yes" } else { "no" }, *expect, "event {number} of {events:?}");
                    continue;
                }
                "drained" => {
                    assert_eq!(if driver.is_drained() { "yes" } else { "no" }, *expect, "event {number} of {events:?}");
                    continue;
                }
                _ if event.starts_with('+') => {
                    let prefers = prefers.parse().ok().map(InstanceId);
                    let arrival = |ticket| Arrival { client, prefers, ..Arrival::new(ticket, 1) };
                    tickets.insert(argument(), driver.arrive(argument(), arrival, 0));
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
            assert_eq!(shown, *expect, "event {number}, {event}, of {events:?}");
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
    fn a_request_runs_on_the_instance_that_it_prefers_or_does_not_wait_for_it() {
        check(
            3,
            &[
                ("+1>2", "1@2"),
                ("+2>2", "2@0"),
                ("+3", "3@1"),
                ("+4>2", "."),
                ("i1", "4@1"),
                ("i2", "."),
                ("+5>7", "5@2"),
            ],
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
    fn a_peer_that_floods_keeps_nobody_waiting_and_nobody_out() {
        check(
            1,
            &[
                ("+1@7", "1@0"),
                ("+2@7", "."),
                ("+3@7", "."),
                ("+4@7", "."),
                ("+5@8", "."),
                ("i0", "2@0"),
                ("i0", "5@0"),
                ("i0", "3@0"),
            ],
        );
        check_of(
            Fifo::bounded(4),
            1,
            &[
                ("+1@7", "1@0"),
                ("+2@7", "."),
                ("+3@7", "."),
                ("+4@7", "."),
                ("+5@7", "5!"),
                ("+6@8", "."),
                ("+7@8", "7!"),
                ("i0", "2@0"),
                ("i0", "6@0"),
                ("i0", "3@0"),
            ],
        );
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
