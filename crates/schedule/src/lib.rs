//! Who runs together, when?
//!
//! ```text
//!   arrive ───────┐                    ┌──► Run: a batch on an instance
//!   idle ─────────┼──► a [`Scheduler`] ─┼──► Wait: nothing to do, or nothing until a time
//!   cancel, time ─┘                    └──► (arrive only) a refusal
//! ```
//!
//! A scheduler holds tickets and decides; the driver holds the requests behind them, the instances, the clock and the lock.
//! Time comes in with each event, in µs since whatever moment the driver chose, so tests need no sleep.
//!
//! ```
//! use nerite_schedule::{Arrival, Fifo, Scheduler, Step, Ticket};
//!
//! let mut fifo = Fifo::new(1);
//! let arrival = |number| Arrival { ticket: Ticket(number), rows: 1 };
//! assert!(matches!(fifo.arrive(arrival(1), 0), Ok(Step::Run(_))));
//! assert_eq!(fifo.arrive(arrival(2), 10), Ok(Step::Wait { until_us: None }));
//! ```
#![forbid(unsafe_code)]

mod fifo;

pub use fifo::Fifo;

/// One request in the eyes of a scheduler. A driver hands tickets out in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// The position of an instance among those of its model version, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(pub usize);

/// A request that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its ticket.
    pub ticket: Ticket,
    /// Rows it adds to a batch; at least 1.
    pub rows: u32,
}

/// What the driver does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Hand the batch to its instance, then ask [`Scheduler::turn`] whether there is more.
    Run(Batch),
    /// Nothing, unless `until_us` comes before the next event: then ask [`Scheduler::turn`].
    Wait {
        /// When a decision is due without any event.
        until_us: Option<u64>,
    },
}

/// Requests that run together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Where they run.
    pub instance: InstanceId,
    /// The first of them.
    pub oldest: Ticket,
    /// The others in order; no allocation where a request runs alone.
    pub others: Vec<Ticket>,
}

/// Why a request does not get into the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The scheduler takes no more requests.
    Stopping,
    /// As many wait as may.
    Full,
}

impl Refusal {
    /// The sentence that Triton's clients know, to stand behind the request's id.
    pub fn sentence(self) -> &'static str {
        match self {
            Refusal::Stopping => "Server is stopping, scheduler for model has stopped accepting new inference requests",
            Refusal::Full => "Exceeds maximum queue size",
        }
    }
}

/// A way to order requests. All instances are idle at first.
pub trait Scheduler {
    /// A request came. Its ticket is greater than all before.
    fn arrive(&mut self, arrival: Arrival, now_us: u64) -> Result<Step, Refusal>;

    /// An instance has finished what it was given.
    fn idle(&mut self, instance: InstanceId, now_us: u64) -> Step;

    /// Whether anything can start now, though nothing happened but time.
    fn turn(&mut self, now_us: u64) -> Step;

    /// Takes a waiting request out. False: it does not wait (any more), and runs or ran.
    fn cancel(&mut self, ticket: Ticket) -> bool;

    /// Takes no more requests; those that wait still run.
    fn stop(&mut self);

    /// Requests that wait.
    fn waiting(&self) -> usize;

    /// Whether nothing waits and nothing runs.
    fn is_drained(&self) -> bool;
}
