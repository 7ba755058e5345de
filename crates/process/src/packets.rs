//! Which packets do the server and a model's process exchange, and how is each encoded?
//!
//! ```text
//!   server ── BatchPacket, OutputSpace, Forget, Cancelled, LetGo ──► process        reads them as a Command
//!   server ◄── Answer, Need, Log, questions, calls ───── process         reads them as Said, SideSaid, CallSaid
//! ```
//!
//! Packets that are sent implement [`std::fmt::Display`], and are written without intermediate lists. Received packets are JSON, of which each part
//! is parsed when it is used: an invalid part fails only the request that it belongs to. `docs/python-process.md` describes the packets. `tests/packets` has
//! one of each, which the tests of this module and of `python/nerite/model/packets.py` read and write.

mod answer;
mod answers_apart;
mod calls;
mod command;
mod packed;
mod questions;
mod ready;
mod reports;
mod side;
mod tensors;

pub use answer::{Answer, Execution, IsReady, Need, Response, Responses, Said, WrittenResponse};
pub use answers_apart::{MemoryCall, Released, RescheduleCall, SendResponse};
pub use calls::{
    Answered, Call, CallFailed, CallSaid, Done, InferCallRead, MemoryFound, NextOutputMemory, Over, Release, Respond,
    Unknown,
};
pub use command::{
    Command, Complete, Execute, Forget, Greeting, Initialize, Model, NoMemoryFound, OutputSpace, Reap, Request,
    RequestRead,
};
pub use packed::BatchPacket;
pub use questions::{Cancelling, ConfigAnswer, ConfigCall, InferCall, LoadCall, SpaceCall, Taken, UnloadCall};
pub use ready::{ImportedFile, Ready};
pub use reports::{MemoryReported, Responded};
pub use side::{Cancelled, Gone, IsCancelled, LetGo, Log, Measured, MetricQuestion, SideSaid, Unmeasured};
pub use tensors::{List, OutputMemory, Segment, SegmentOffset, TensorAt};

use serde_json::Value;

/// The command that asks whether a model is ready.
pub const IS_READY: &str = r#"{"do":"ready"}"#;
/// The command that finalizes the model and ends the process.
pub const FINALIZE: &str = r#"{"do":"finalize"}"#;
/// The command to a template to fork a process, which gets the descriptors of the packet.
pub const FORK: &str = r#"{"do":"fork"}"#;
/// The answer to [`FINALIZE`].
pub const DONE: &str = r#"{"done":true}"#;

/// The numbers in a list, if it is one.
fn numbers(list: Option<&Value>) -> impl Iterator<Item = u64> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_u64)
}

/// The packet that replaces a text that is too long for a packet. It has the text's size. The text itself is in a file that comes with it.
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
