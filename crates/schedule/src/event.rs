//! Which events does a scheduler get?

use std::sync::Arc;

use smallvec::SmallVec;

/// The scheduler's number of a request. A driver gives tickets in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// The position of an instance among those of its model version, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(pub usize);

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request arrived. Its ticket is greater than all earlier ones.
    Arrived(Arrival),
    /// An instance finished its batch. It must be granted again before its next batch.
    Done(InstanceId),
    /// An instance may start a batch. Each is granted once before its first batch, and once after each `Done`.
    Granted(InstanceId),
    /// An instance that was granted is being removed, and may not start any more.
    Withdrawn(InstanceId),
    /// An instance was added or removed, or went down or came up. Only a scheduler that [binds](crate::Scheduler::binds) gets this.
    Changed(InstanceId, InstanceChange),
    /// The client cancelled a request. If it waits, reject it with [`Rejection::Cancelled`](crate::Rejection::Cancelled).
    Cancelled(Ticket),
    /// A request of the sequence whose state has this number ([`Controls::state`](crate::Controls::state)) was given to an instance and did not run
    /// to its end. Its instance is not `Done` yet. The sequence is over: reject its waiting requests with
    /// [`Rejection::Cancelled`](crate::Rejection::Cancelled).
    CutShort(u64),
    /// The time at which the scheduler requested to be woken.
    Time,
    /// The model stops. New requests are rejected. Waiting requests still run.
    Stop,
}

/// What happened to an instance. Sequences that are bound to it stay bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceChange {
    /// It was added, and is granted afterwards. Those that are there from the beginning are not reported.
    Added,
    /// It was removed. No more sequences are bound to it. It is still granted, for those that are, until
    /// [`Actions::unbound`](crate::Actions::unbound) has it.
    Removed,
    /// Its process has died, and another instance is up. No more sequences are bound to it. It is still granted: a run there waits for the next process
    /// or gets its error.
    Down,
    /// It was down, and is used as usual again.
    Up,
}

/// A request that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its ticket.
    pub ticket: Ticket,
    /// Rows that it adds to a batch; at least 1.
    pub rows: u32,
    /// Its priority level: 1 is served first. 0 if the model has no levels.
    pub priority: u64,
    /// How long it may wait.
    pub deadline: Option<Deadline>,
    /// The client that sent it.
    pub client: Client,
    /// Whether requests run in the order of arrival, so that clients do not take turns. They share the places of the queue all the same.
    pub in_order: bool,
    /// The sequence that it belongs to.
    pub sequence: Option<SequenceStep>,
    /// A key of the shapes of its inputs. Only requests with equal keys may share a batch. 0 unless [`Wants::shapes`] is set.
    pub shapes: u64,
    /// The memory of its inputs, in the order of the model's configuration. Empty unless [`Wants::spans`] is set.
    pub spans: Spans,
    /// Whether it may run again.
    pub repeat: Repeat,
    /// The instance that can read its inputs where they lie. The request runs there if that instance is free when the request starts.
    pub prefers: Option<InstanceId>,
}

/// The client that sent a request. Clients share a queue fairly: peers take turns, and so do the flows of one peer. The default is the server itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Client {
    /// The number of its user or its address.
    pub peer: u64,
    /// The number of the connection. It is unique at least among the connections of its peer.
    pub flow: u64,
}

/// Whether a request runs again after its run: Triton's iterative sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repeat {
    /// It does not run again.
    #[default]
    Never,
    /// It may run again, as often as its model requests it. Its sequence is over when the model does not request another run.
    Possible,
    /// It is submitted again before its run is `Done`, as the next request of the sequence whose state has this number
    /// ([`Controls::state`](crate::Controls::state)).
    Of(u64),
}

impl Arrival {
    /// A request with this number of rows and no other properties.
    pub fn new(ticket: Ticket, rows: u32) -> Arrival {
        Arrival {
            ticket,
            rows,
            priority: 0,
            deadline: None,
            client: Client::default(),
            in_order: false,
            sequence: None,
            shapes: 0,
            spans: Spans::new(),
            repeat: Repeat::Never,
            prefers: None,
        }
    }

    /// The client that the request takes a turn of.
    pub(crate) fn turns_of(&self) -> Client {
        if self.in_order { Client::default() } else { self.client }
    }
}

/// Properties of arrivals that a scheduler reads, and that cost time to compute.
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
    /// The action at that time.
    pub action: TimeoutAction,
}

/// What happens to a request that has waited too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutAction {
    /// It is rejected.
    Reject,
    /// It is moved behind all others of its priority level.
    Delay,
}

/// One request of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceStep {
    /// The sequence.
    pub key: SequenceKey,
    /// Whether it is the first.
    pub start: bool,
    /// Whether it is the last.
    pub end: bool,
}

/// What the requests of one sequence share. The same id of two owners means two sequences.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SequenceKey {
    /// The number of the owner.
    pub owner: u64,
    /// The id. Models know sequences by it.
    pub id: SequenceId,
}

/// The id that the requests of one sequence share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SequenceId {
    /// Not 0.
    Number(u64),
    /// A number that the server gave to a request without an id. It never equals a client's number.
    Own(u64),
    /// Not empty.
    Text(Arc<str>),
}

/// The bytes of all inputs.
pub type Spans = SmallVec<[Span; 2]>;

/// The bytes of one input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The block of memory.
    pub allocation: u64,
    /// The offset of its first byte in the block.
    pub offset: u64,
    /// The number of bytes.
    pub len: u64,
}

impl Span {
    /// Whether `next` begins where this ends, so that both can be read as one.
    pub fn is_followed_by(&self, next: &Span) -> bool {
        self.allocation == next.allocation && self.offset.checked_add(self.len) == Some(next.offset)
    }
}
