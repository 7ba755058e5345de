//! What may the packets between the server and a model's process say, and how is each written?
//!
//! ```text
//!   server ── BatchPacket, OutputSpace, Forget, Cancelled, LetGo ──► process        reads them as a Command
//!   server ◄── Answer, Need, Log, questions, calls ───── process         reads them as Said, SideSaid, CallSaid
//! ```
//!
//! Whatever is sent implements [`std::fmt::Display`] and is written without lists in between. Whatever is received is JSON of which each part
//! is read when it is used: a part that makes no sense costs the request that it belongs to, and no other. `docs/python.md` describes the
//! packets; `tests/packets` holds one of each, which the tests of this module and of `python/nerite/model/packets.py` read and write.

mod answer;
mod calls;
mod command;
mod packed;
mod side;
mod tensors;

pub use answer::{Answer, Execution, IsReady, Need, Outcome, Ready, Response, Responses, Said};
pub use calls::{Answered, Asked, Call, CallSaid, Done, NoPlace, Over, Place, Places, Release, Respond, Unknown};
pub use command::{
    Command, Complete, Execute, Forget, Greeting, Initialize, Model, NoRoom, OutputSpace, Reap, Request, RequestRead,
};
pub use packed::BatchPacket;
pub use side::{Cancelled, Gone, IsCancelled, LetGo, Log, Measured, MetricAsked, SideSaid};
pub use tensors::{List, PlaceFor, Segment, SegmentOffset, TensorAt};

use serde_json::Value;

/// The question whether a model is ready.
pub const IS_READY: &str = r#"{"do":"ready"}"#;
/// The command that ends a process in order.
pub const FINALIZE: &str = r#"{"do":"finalize"}"#;
/// The command that has a template make one more process, which gets the descriptors beside it.
pub const FORK: &str = r#"{"do":"fork"}"#;
/// What answers [`FINALIZE`].
pub const DONE: &str = r#"{"done":true}"#;

/// The numbers in a list, if it is one.
fn numbers(list: Option<&Value>) -> impl Iterator<Item = u64> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_u64)
}

/// What stands in place of a text that is too long for a packet: its bytes. The text itself lies in a file beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Long(pub(crate) usize);

impl Long {
    pub(crate) fn read(packet: &[u8]) -> Option<Long> {
        let value: Value = serde_json::from_slice(packet).ok()?;
        usize::try_from(value.get("long")?.as_u64()?).ok().map(Long)
    }
}

impl std::fmt::Display for Long {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, r#"{{"long":{}}}"#, self.0)
    }
}

#[cfg(test)]
mod tests;
