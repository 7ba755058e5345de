//! What may a client ask?
//!
//! Every front end calls only this crate for its rules. So a check, a limit, an access rule or an error text exists once. Region names become memory
//! here, and errors become a [`Status`].
//!
//! ```text
//!   http ─┐                    ┌─ admit    does the request fit its model? names become memory
//!   grpc ─┼─► Api ─► calls ────┼─ engine   models, statistics, repository
//!   …    ─┘     access rules   └─ shm      regions
//! ```
//!
//! ```
//! use nerite_api::{Category, Code, codes};
//!
//! assert_eq!((codes::http_status(Code::NotFound), codes::grpc_status(Code::NotFound)), (404, 5));
//! assert_eq!(Category::SharedMemory.name(), "shared-memory"); // as `--http-restricted-api` names it
//! ```
#![forbid(unsafe_code)]

mod access;
mod admission;
mod admit;
mod api;
mod aside;
mod audit;
mod caller;
mod calls;
mod classify;
pub mod codes;
mod delivery;
mod demand;
mod errors;
mod for_tests;
mod gpus;
mod logging;
mod one_response;
mod operator;
mod owners;
mod places;
mod prepared;
mod queue;
mod refusals;
mod region_rules;
mod scope;
mod sized;
mod staged;
mod stalling;
mod tensor_reports;
mod tokens;
mod traced;
mod under_way;
mod upload;
mod version;
mod web_sites;

pub use access::{Category, Protocol, Refused, Restriction};
pub use admission::{Admission, Found, Responses, Target};
pub use api::{Api, HostMeter, Options};
pub use aside::{Aside, aside, on_disk};
pub use audit::{AUDIT_TARGET, quoted};
pub use caller::{ACCESS_TARGET, BodyCounter};
pub use calls::Changeable;
pub use demand::{LoadedModel, ModelLoad, timeout_is_over};
pub use gpus::GpuFigures;
pub use logging::{LogFormat, LogLoss, LogSwitches};
pub use nerite_access::Tokens;
pub use nerite_request::{Code, Status};
pub use nerite_request::{TraceContext, TraceLevels};
pub use nerite_shm::{BorrowedLease, LEASES_PER_SESSION_MAX};
pub use nerite_trace::{COLLECTOR_URL, RecentNote, RecentRequest, SpanConfig, TraceConfig, collector_fault};
pub use nerite_wire::prometheus::{GpuMetrics, HostMetrics, SessionSocketMetrics};
pub use operator::{NotOperator, Operator, check_operator};
pub use places::OutputLease;
pub use prepared::{CallError, PreparedRequest};
pub use region_rules::{RegionRules, ShmScope, ShmTrust};
pub use scope::{REGIONS_PER_SESSION_MAX, SESSIONS_MAX, Scope};
pub use traced::{Sending, TraceClock};
pub use under_way::UnderWay;
pub use upload::Upload;
pub use web_sites::{Hosts, Refusal, Verdict, WebSites, allowed_host, allowed_origin, is_origin_of, share_with};
