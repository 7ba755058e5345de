//! What must a runtime promise, and what does it get?
//!
//! ```text
//!   Runtime ──load──► Model ──instance──► Instance ◄── run(Batch of Jobs)
//!     one per backend    one per version     one per concurrent execution
//! ```
//!
//! [`Instance::run`] takes its jobs for good: it may answer them from any thread, with one response or many, and may return
//! before they are answered. What most runtimes want (answer all, in order, before returning) is [`Compute`] behind
//! [`InOrder`], or [`Execute`] behind [`Joined`] where the rows of several requests run as one. A job that is dropped unanswered answers itself with an error. [`conformance`] holds every runtime to this.
//! Runtimes that compute on the host see memory of the host alone: [`Staged`] carries what lies on devices beyond their [`DeviceAccess`].
#![forbid(unsafe_code)]

mod compute;
pub mod conformance;
mod device_access;
pub mod identity;
mod job;
mod meter;
pub mod onnx;
mod rows;
mod runtime;
mod staged;

pub use compute::{Compute, InOrder};
pub use device_access::DeviceAccess;
pub use job::{Job, OutputPlace};
pub use meter::{Meter, NoMeter, Outcome, RequestTimes, Times, now_ns};
pub use rows::{Execute, Joined, Work};
pub use runtime::{Batch, CostBound, Instance, InstanceSpec, LoadContext, Model, Runtime};
pub use staged::Staged;
