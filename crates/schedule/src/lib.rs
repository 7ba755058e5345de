//! Which requests run together, and when?
//!
//! ```text
//!   arrived ──────────┐                        ┌──► run a batch on an instance
//!   done, granted ────┼──► a [`Scheduler`] ────┼──► reject a request with its reason
//!   cancelled ────────┤                        └──► wake me at a time
//!   time, stop ───────┘
//! ```
//!
//! A scheduler decides. It knows only tickets and who sent them. A [`Driver`] holds the requests behind the tickets and applies every decision. Both
//! are pure: the time comes with each event, in µs since any fixed moment. The caller owns threads, locks and the clock. So tests run both together
//! without sleeping.
//!
//! An instance that is done may not start at once: a rate limiter may delay `Granted` after `Done`.
//!
//! ```
//! use nerite_schedule::{Arrival, Driver, Fifo, InstanceId};
//!
//! let mut driver = Driver::new(Box::new(Fifo::new()));
//! driver.grant(InstanceId(0), 0);
//! driver.arrive("first", |ticket| Arrival::new(ticket, 1), 5);
//! driver.arrive("second", |ticket| Arrival::new(ticket, 1), 6);
//! let run = driver.next_run().expect("the instance is idle");
//! assert_eq!(run.jobs().collect::<Vec<_>>(), [&"first"]);
//! assert!(driver.next_run().is_none());
//! ```
#![forbid(unsafe_code)]

mod action;
mod batcher;
mod driver;
mod event;
mod fair_order;
mod fifo;
mod granted;
mod limiter;
mod occupancy;
mod sequence;

pub use action::{Action, Actions, Batch, Controls, Rejection, Slot};
pub use batcher::{BatchPolicy, Batcher, PriorityLevels, QueuePolicy};
pub use driver::{Driver, JoinRule, Run, RunSlot};
pub use event::{
    Arrival, Client, Deadline, Event, InstanceChange, InstanceId, Repeat, SequenceId, SequenceKey, SequenceStep, Span,
    Spans, Ticket, TimeoutAction, Wants,
};
pub use fifo::Fifo;
pub use limiter::{Claim, ClaimError, Claimant, Limiter, Resource, ResourceLimits};
pub use occupancy::limit_of_share;
pub use sequence::{Direct, DirectPolicy, HoldBack, Oldest, OldestPolicy};

/// What a scheduler gets beside the event, and the list for its decisions.
pub struct Context<'a> {
    /// The time, in µs of the driver's clock. It never goes back.
    pub now_us: u64,
    /// The list that decisions are added to.
    pub actions: &'a mut Actions,
    /// Whether a request may join a batch, by the model's [`JoinRule`]. The first ticket is the batch's first request.
    pub may_join: &'a dyn Fn(Ticket, Ticket) -> bool,
}

impl Context<'_> {
    /// Decides to run a batch.
    pub fn run(&mut self, batch: Batch) {
        self.actions.list.push(Action::Run(batch));
    }

    /// Decides to reject a request.
    pub fn reject(&mut self, ticket: Ticket, rejection: Rejection) {
        self.actions.list.push(Action::Reject(ticket, rejection));
    }

    /// Requests [`Event::Time`] at that time. If an earlier time was requested, that one stays.
    pub fn wake_at(&mut self, at_us: u64) {
        let earliest = self.actions.wake_at_us.map_or(at_us, |known| known.min(at_us));
        self.actions.wake_at_us = Some(earliest);
    }
}

/// Decides which requests run, when and together.
///
/// Each ticket is run once or rejected once. After each event the scheduler must start all batches that may start: it is not called again for them.
pub trait Scheduler {
    /// Decides what follows from an event.
    fn handle(&mut self, event: Event, context: &mut Context<'_>);

    /// Which properties of arrivals it reads.
    fn wants(&self) -> Wants {
        Wants::default()
    }

    /// Whether it binds requests to an instance before they run. If so, an instance whose process has died is still granted, for the requests that
    /// are bound to it, and the scheduler gets [`Event::Changed`].
    fn binds(&self) -> bool {
        false
    }

    /// Whether a batch would start on this idle instance if it were granted now. If that depends on the time alone, the scheduler requests to be woken.
    fn would_start(&mut self, _instance: InstanceId, _context: &mut Context<'_>) -> bool {
        self.waiting() > 0
    }

    /// Requests that wait.
    fn waiting(&self) -> usize;
}
