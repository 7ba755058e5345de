//! How does one request become one response?
//!
//! ```text
//!   Engine ─ catalog (read without a lock) ─► Admission to a Served ─► contract ─► Pool ─► Instance
//!      └── load, unload: threads of its own, decisions by `nerite_repository`
//! ```
//! Below the front ends, only this crate has threads and clocks.
//!
//! ```
//! use std::sync::Arc;
//!
//! use nerite_backend::identity::Identity;
//! use nerite_engine::Runtimes;
//!
//! let mut runtimes = Runtimes::default();
//! runtimes.add(Arc::new(Identity));
//! runtimes.set("", "default-max-batch-size", "4"); // for all backends
//! assert_eq!(runtimes.get("identity").map(|runtime| runtime.engine()), Ok("built in".to_owned()));
//! assert!(runtimes.get("tensorrt").is_err_and(|error| error.message.contains("this server has: identity")));
//! assert_eq!(runtimes.settings("identity")["default-max-batch-size"], "4");
//! ```
#![forbid(unsafe_code)]

mod admission;
mod arrival;
mod cached;
mod catalog;
mod client_instances;
mod config_tensors;
mod contract;
mod control_calls;
mod cut_short;
mod deadline;
mod declared_shapes;
mod devices;
mod ending;
mod engine;
mod for_tests;
mod instances;
mod latencies;
mod limits;
mod load;
mod load_admission;
mod load_queue;
mod lookups;
mod members;
mod model_file;
mod policies;
mod pool;
mod progress;
mod quickness;
mod rates;
mod readiness;
mod response_order;
mod run_on;
mod runtimes;
mod scheduling;
mod sequences;
mod served;
mod services;
mod states;
mod stats;
mod timer;
mod unsupported;
mod verbose;
mod warmup;
mod watch;

pub use admission::Admission;
pub use client_instances::ClientInstances;
pub use contract::{CheckedTensors, Contract, Prefix, Tensors};
pub use declared_shapes::DeclaredShapes;
pub use engine::{DemandCounts, Engine, FileChanges, LoadCount, Options, RepositoryChange, Unended, Waiting};
pub use latencies::LatencyMetrics;
pub use limits::ADMISSIONS_MAX;
pub use load::Loader;
pub use nerite_backend::output_too_small;
pub use nerite_repository::{Labels, Missing, phrase};
pub use policies::{HOST_POLICY_SETTINGS, HostPolicies};
pub use rates::RateLimits;
pub use readiness::ReadinessAnswer;
pub use runtimes::Runtimes;
pub use scheduling::QueueLimits;
pub use served::{Served, VersionKey};
pub use services::Services;
pub use watch::{Waiter, Watch, watch_by};
