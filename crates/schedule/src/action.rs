//! What does a scheduler decide?

use smallvec::SmallVec;

use crate::event::{InstanceId, SequenceId, Ticket};

/// Decisions that followed from one event.
#[derive(Debug, Default)]
pub struct Actions {
    /// The decisions, in order.
    pub list: Vec<Action>,
    /// When the scheduler wants [`Event::Time`](crate::Event::Time), in µs. Each event sets this anew. `None`: it needs no call before the next
    /// event.
    pub wake_at_us: Option<u64>,
    /// The numbers of sequences that are over ([`Controls::state`]): no request of them will run. Their last requests may not have been answered yet.
    pub over: Vec<u64>,
    /// Removed instances to which no sequence is bound any more. None of them runs.
    pub unbound: Vec<InstanceId>,
}

/// One decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Run these together.
    Run(Batch),
    /// Answer the request with the reason.
    Reject(Ticket, Rejection),
}

/// Requests that run together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The instance they run on. It was granted, and has not started a batch since.
    pub instance: InstanceId,
    /// The requests, in the order in which their rows lie in the batch.
    pub slots: SmallVec<[Slot; 1]>,
}

impl Batch {
    /// One request alone.
    pub fn of_one(instance: InstanceId, ticket: Ticket) -> Batch {
        Batch { instance, slots: SmallVec::from_buf([Slot::Request { ticket, controls: None }]) }
    }

    /// The tickets of its requests.
    pub fn tickets(&self) -> impl Iterator<Item = Ticket> + '_ {
        self.slots.iter().filter_map(Slot::ticket)
    }
}

/// A place in a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slot {
    /// The place of a sequence that has no request now. Its READY is false.
    Empty,
    /// A request.
    Request {
        /// The request's ticket.
        ticket: Ticket,
        /// The sequence controls for the model. `None` if the request belongs to no sequence.
        controls: Option<Box<Controls>>,
    },
}

impl Slot {
    /// The request in it.
    pub fn ticket(&self) -> Option<Ticket> {
        match self {
            Slot::Empty => None,
            Slot::Request { ticket, .. } => Some(*ticket),
        }
    }
}

/// The sequence controls of a request. READY is true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controls {
    /// START: the request is the first.
    pub start: bool,
    /// END: the request is the last.
    pub end: bool,
    /// CORRID: the id of the sequence.
    pub id: SequenceId,
    /// The number of the sequence's state. The state is read before the run and written after it.
    pub state: u64,
}

/// Why a request is not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rejection {
    /// The scheduler takes no more requests.
    Stopping,
    /// The queue has reached the limit that the model's author set.
    Full,
    /// The queue has reached the limit of the server.
    Overloaded,
    /// The request has waited as long as it may.
    TimedOut,
    /// The client cancelled it.
    Cancelled,
    /// It belongs to no sequence, or to one that has not started.
    MissingStart,
    /// Its sequence has waited for a slot as long as it may.
    SequenceTimedOut,
    /// It was to run again, but was submitted after its run had ended.
    RunEnded,
}

impl Rejection {
    /// Triton's error text, which follows the request's id.
    pub fn sentence(self) -> &'static str {
        match self {
            Rejection::Stopping => {
                "Server is stopping, scheduler for model has stopped accepting new inference requests"
            }
            Rejection::Full | Rejection::Overloaded => "Exceeds maximum queue size",
            Rejection::TimedOut => "Request timeout expired",
            Rejection::Cancelled => "",
            Rejection::MissingStart => "must specify the START flag on the first request of the sequence",
            Rejection::SequenceTimedOut => "timeout of the corresponding sequence has been expired",
            Rejection::RunEnded => "Request is rescheduled after its execution has ended",
        }
    }
}
