//! What travels between a client, the server and a model?
//!
//! ```text
//!   wire ──► InferRequest ──► api, engine ──► AdmittedRequest ──► backend ──► Response ──► api ──► InferResponse ──► wire
//!            names                          Buffers, Slots              Buffers              classified, in leases
//! ```
//!
//! An [`InferRequest`] still consists of names (regions, models, versions as text). An [`AdmittedRequest`] holds
//! Buffers and Slots, and its [`Reply`], which is the only way back to the client. A [`Request`] is an admitted request before the check. Everything that
//! clients may read about the server (metadata, statistics, index, settings) is a plain struct in [`report`], which `wire` writes. Structs that only its
//! operator may read are in [`inspect`].
//!
//! ```
//! use std::sync::mpsc::channel;
//!
//! use nerite_request::{Code, Reply, Response};
//!
//! let (to, answers) = channel();
//! let reply = Reply::new(move |response| drop(to.send(response)));
//! drop(reply); // a lost reply is an error and never a hang
//! let Response::Failed { error, more, .. } = answers.recv()? else { panic!("an error") };
//! assert_eq!((error.code, more), (Code::Internal, false));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod cancel;
mod exactly_one;
mod infer_request;
mod input_memory;
mod inputs;
pub mod inspect;
mod lease_notice;
pub mod limits;
pub mod names;
mod parameter;
mod peer;
mod prefix;
mod recycled;
mod region_ref;
mod reply;
pub mod report;
#[allow(clippy::module_inception)]
mod request;
mod response;
mod reused_box;
mod sequence_owner;
pub mod setting;
mod status;
mod trace;
mod trace_context;
mod wanted;
mod window;

pub use cancel::Cancel;
pub use exactly_one::{ExactlyOne, NotOne};
pub use infer_request::{
    InferInput, InferInputs, InferRequest, InferRequestedOutput, RequestedOutputs, Sequence, SequenceId, Source,
};
pub use input_memory::InputMemory;
pub use inputs::Inputs;
pub use lease_notice::{LeaseNotice, SessionRef};
pub use nerite_budget::{OverShare, PeerAccount, PeerCharge};
pub use nerite_tensor::Name;
pub use parameter::{Parameter, Parameters};
pub use peer::{Network, Peer};
pub use prefix::Prefix;
pub use recycled::{FreeList, Recycle, Recycled, clear_list};
pub use region_ref::RegionRef;
pub use reply::{Counted, Deliver, DeliverNumbered, Numbered, PlaceQuery, PolicyData, Reply};
pub use request::{AdmittedRequest, Client, Request};
pub use response::{InferResponse, Output, Outputs, Response};
pub use sequence_owner::{SequenceOwner, SequenceScope};
pub use status::{Code, Status};
pub use trace::{
    Begin, Gathered, NewTrace, Note, Noted, RequestTrace, TraceBudget, TraceLevels, TraceObserver, TraceSink,
    TracedTensor,
};
pub use trace_context::{SpanIds, TRACEPARENT, TRACESTATE, TraceContext};
pub use wanted::{NamedOutputs, OutputKey, Wanted, WantedOutputs};
pub use window::{Backlog, NextResponse, ResponsePermit, ResponseWindow};
