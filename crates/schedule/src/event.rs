//! What does a scheduler learn?

use std::sync::Arc;

use smallvec::SmallVec;

/// One request in the eyes of a scheduler. A driver hands tickets out in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// The position of an instance among those of its model version, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(pub usize);

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request came. Its ticket is greater than all before.
    Arrived(Arrival),
    /// An instance finished its batch. It starts no other before it is granted again.
    Done(InstanceId),
    /// An instance may start a batch. Each is granted once before its first batch, and once after each `Done`.
    Granted(InstanceId),
    /// An instance that was granted may not start any more: it leaves.
    Withdrawn(InstanceId),
    /// The client gave a request up. If it waits, it is to be rejected with [`Rejection::Cancelled`](crate::Rejection::Cancelled).
    Cancelled(Ticket),
    /// The time has come at which the scheduler wanted to be woken.
    Time,
    /// No more requests are taken: those that come are rejected, those that wait still run.
    Stop,
}

/// A request that has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its ticket.
    pub ticket: Ticket,
    /// Rows that it adds to a batch; at least 1.
    pub rows: u32,
    /// Its priority level: 1 is served first. 0 where the model has no levels.
    pub priority: u64,
    /// How long it may wait.
    pub deadline: Option<Deadline>,
    /// The sequence that it belongs to.
    pub sequence: Option<SequenceStep>,
    /// Requests with equal keys may share a batch as far as the shapes of their inputs are concerned. 0 unless
    /// [`Wants::shapes`] is set.
    pub shapes: u64,
    /// Where its inputs lie, in the order of the model's configuration. Empty unless [`Wants::spans`] is set.
    pub spans: Spans,
    /// Whether it may come again after it ran.
    pub repeat: Repeat,
}

/// Whether a request comes again after it ran: Triton's iterative sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repeat {
    /// It does not.
    #[default]
    Never,
    /// It may, as often as its model asks for it. When it does not, its sequence is over.
    Possible,
    /// It ran, and comes again before that run is `Done`: as the next request of the sequence whose state has this number
    /// ([`Controls::state`](crate::Controls::state)).
    Of(u64),
}

impl Arrival {
    /// A request of so many rows about which nothing else is known.
    pub fn new(ticket: Ticket, rows: u32) -> Arrival {
        let (spans, repeat) = (Spans::new(), Repeat::Never);
        Arrival { ticket, rows, priority: 0, deadline: None, sequence: None, shapes: 0, spans, repeat }
    }
}

/// What a scheduler wants to know of arrivals, beyond what costs nothing to tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// [`Arrival::shapes`].
    pub shapes: bool,
    /// [`Arrival::spans`].
    pub spans: bool,
}

/// The time until which a request may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// In µs of the driver's clock.
    pub at_us: u64,
    /// What happens then.
    pub action: TimeoutAction,
}

/// What happens to a request that has waited too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutAction {
    /// It is rejected.
    Reject,
    /// It goes behind all others of its priority level.
    Delay,
}

/// One request of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceStep {
    /// Which sequence.
    pub id: SequenceId,
    /// Whether it is the first.
    pub start: bool,
    /// Whether it is the last.
    pub end: bool,
}

/// What the requests of one sequence have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SequenceId {
    /// Not 0.
    Number(u64),
    /// A number that the server gave to a request without one. No client's number means this sequence.
    Own(u64),
    /// Not empty.
    Text(Arc<str>),
}

/// The bytes of all inputs.
pub type Spans = SmallVec<[Span; 2]>;

/// The bytes of one input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Which block of memory.
    pub allocation: u64,
    /// The first of its bytes there.
    pub offset: u64,
    /// How many there are.
    pub len: u64,
}

impl Span {
    /// Whether `next` begins where this ends, so that both can be read as one.
    pub fn is_followed_by(&self, next: &Span) -> bool {
        self.allocation == next.allocation && self.offset.checked_add(self.len) == Some(next.offset)
    }
}
