//! How does a model run in a process of its own?
//!
//! ```text
//!   ProcessInstance ── channel ──► child: maps the memory that requests name, computes there
//!     plan, answer      side   ◄── log lines, questions from any thread
//!   Supervisor: starts the children, reads their side channels, reaps them
//! ```
//!
//! This is the server's side, which is the same for all kinds of child processes. A [`ProcessLauncher`] decides what runs in the child: crate
//! `python` starts the user's interpreter, crate `isolated` starts this program again with an engine in it. Tensors are not sent: the child maps the
//! client's own memory ([`nerite_memory::Share`]) and reads and writes there. Other tensors are copied once into blocks that both map. If a child
//! dies, only its requests fail, and another child is started. `docs/python-process.md` describes the packets. Their types
//! are in [`packets`].
//!
//! ```
//! use nerite_process::packets::{Command, FINALIZE, IsReady, Said};
//!
//! // Each side reads the packets that the other one writes.
//! let command = Command::read(FINALIZE.as_bytes())?;
//! assert_eq!(command.name(), Some("finalize"));
//! let said = Said::read(IsReady(true).to_string().as_bytes())?;
//! assert!(said.is_ready());
//! # Ok::<(), serde_json::Error>(())
//! ```
#![forbid(unsafe_code)]

mod answer;
mod backoff;
mod blocks;
mod calls;
mod channel;
mod child;
mod health;
mod host;
mod instance;
pub mod limits;
mod live;
mod living;
mod logged;
mod measured;
mod os_process;
mod overtime;
pub mod packets;
mod passed_on;
mod placement;
mod plan;
mod printed;
mod process_memory;
mod process_name;
mod process_output;
mod resident_memory;
mod restarts;
mod shares;
mod spawn;
mod spent;
mod supervisor;
mod under_way;
mod waits;
mod words;

pub use blocks::Blocks;
pub use calls::Callees;
pub use channel::{Channel, Packet, memory_file};
pub use child::{Child, ProcessTimeouts, SideEnd, Silence};
pub use host::ProcessHost;
pub use instance::ProcessInstance;
pub use live::{Hearing, Live, ProcessLauncher};
pub use os_process::Parent;
pub use overtime::ExecuteLimit;
pub use printed::{PRINTED_TARGET, PrintedPipes};
pub use process_memory::ProcessMemory;
pub use process_name::{ProcessName, ProcessWork};
pub use process_output::ProcessOutput;
pub use resident_memory::ResidentMemory;
pub use restarts::Restarts;
pub use spawn::spawn;
pub use supervisor::Supervisor;
pub use waits::{Waiter, Waits};
