//! What does a scheduler decide?

use smallvec::SmallVec;

use crate::event::{InstanceId, SequenceId, Ticket};

/// Decisions that followed from one event.
#[derive(Debug, Default)]
pub struct Actions {
    /// In this order.
    pub list: Vec<Action>,
    /// When the scheduler wants [`Event::Time`](crate::Event::Time), in µs. Each event settles it anew: `None` means not before another
    /// event.
    pub wake_at_us: Option<u64>,
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
    /// Where they run: an instance that was granted and has not started since.
    pub instance: InstanceId,
    /// The requests in the order of their rows.
    pub slots: SmallVec<[Slot; 1]>,
}

impl Batch {
    /// One request alone.
    pub fn of_one(instance: InstanceId, ticket: Ticket) -> Batch {
        Batch { instance, slots: SmallVec::from_buf([Slot::Request { ticket, controls: None }]) }
    }

    /// The tickets in it.
    pub fn tickets(&self) -> impl Iterator<Item = Ticket> + '_ {
        self.slots.iter().filter_map(Slot::ticket)
    }
}

/// A place in a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slot {
    /// Of a sequence that has no request now; its READY is false.
    Empty,
    /// A request.
    Request {
        /// Which.
        ticket: Ticket,
        /// What the model is told about its sequence; `None` where it is of none.
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

/// What a model is told about the sequence of a request. READY is true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controls {
    /// START: it is the first.
    pub start: bool,
    /// END: it is the last.
    pub end: bool,
    /// CORRID.
    pub id: SequenceId,
    /// Under which number the driver keeps the sequence's state: it is read before the run and written after it.
    pub state: u64,
}

/// Why a request is not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rejection {
    /// The scheduler takes no more requests.
    Stopping,
    /// As many wait as the model's author lets wait.
    Full,
    /// As many wait as the server lets wait.
    Overloaded,
    /// It has waited as long as it may.
    TimedOut,
    /// Its client gave it up.
    Cancelled,
    /// It is of no sequence, or of one that has not started.
    MissingStart,
    /// Its sequence waited for a place as long as it may.
    SequenceTimedOut,
    /// It came again after its run had ended.
    RunEnded,
}

impl Rejection {
    /// The sentence that Triton's clients know, to stand behind the request's id.
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
