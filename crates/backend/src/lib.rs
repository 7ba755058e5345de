//! What must a runtime promise, and what does it get?
//!
//! ```text
//!   Runtime ──load──► Model ──instance──► Instance ◄── run(Batch of Jobs)
//!     one per backend    one per version     one per concurrent execution
//! ```
//!
//! [`Instance::run`] takes ownership of its jobs. A job can be divided into its inputs and a [`Responder`]. The responder answers from any thread, with one
//! response or many, and may outlive the run. The model stays loaded meanwhile ([`InFlight`]). Most runtimes answer all jobs in order before they return. They
//! implement [`Compute`], which is wrapped in [`InOrder`]. If the rows of several requests run as one, they implement [`Execute`], which is wrapped in
//! [`Joined`]. If a job is dropped unanswered, its client gets an error. [`conformance`] tests that every runtime keeps this contract. Runtimes that compute on
//! the host see only memory of the host, because [`Staged`] copies the tensors that lie on devices. Runtimes for devices say by their [`DeviceAccess`] which
//! tensors they use in place.
//!
//! ```
//! use std::sync::{Arc, mpsc::channel};
//!
//! use nerite_backend::{Batch, Compute, InOrder, Instance, Job, ModelVersion, NoMeter, Times, now_ns};
//! use nerite_request::{Cancel, Parameters, Reply, AdmittedRequest, Response, Sequence, Status, Wanted};
//! use nerite_tensor::{Buffer, DataType, Tensor};
//!
//! /// Answers Y = -X.
//! struct Negate;
//!
//! impl Compute for Negate {
//!     fn compute(&mut self, job: &mut Job, times: &mut Times) -> Result<(), Status> {
//!         let x = job.input("X").ok_or_else(|| Status::invalid("input 'X' is missing"))?.clone();
//!         let numbers = x.data.numbers::<i32>().ok_or_else(|| Status::invalid("input 'X' is no INT32"))?;
//!         times.mark_input_end();
//!         let mut slot = job.output("Y", DataType::Int32, &x.shape)?; // the client's own region, if it named one
//!         let mut cells = slot.cells_mut::<i32>().ok_or_else(|| Status::internal("output 'Y' is not aligned"))?;
//!         cells.fill_with(numbers.iter().map(|number| -number));
//!         job.put("Y", DataType::Int32, x.shape.clone(), slot.filled());
//!         Ok(())
//!     }
//! }
//!
//! let (to, answers) = channel();
//! let request = AdmittedRequest {
//!     id: "42".into(),
//!     inputs: vec![Tensor {
//!         name: "X".into(),
//!         datatype: DataType::Int32,
//!         shape: [2].into_iter().collect(),
//!         data: Buffer::from_numbers(vec![3i32, -4]),
//!     }].into(),
//!     wanted: vec![Wanted { name: "Y".into(), slot: None }].into(),
//!     ..AdmittedRequest::new(Reply::new(move |response| drop(to.send(response))))
//! };
//! let job = Job::new(request, ModelVersion::unmetered("negate").begin(), now_ns());
//! InOrder(Negate).run(Batch { jobs: vec![job].into(), meter: Arc::new(NoMeter) });
//! let Response::Final(answer) = answers.recv()? else { panic!("an error") };
//! let y = answer.outputs[0].data.numbers::<i32>().ok_or("no INT32")?;
//! assert_eq!(y.to_vec(), [-3, 4]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod adapter;
mod compute;
pub mod conformance;
mod custom_metrics;
mod declared_outputs;
mod deferred_report;
mod device_access;
pub mod identity;
mod imported_files;
mod job;
mod job_body;
pub mod limits;
mod load_stop;
mod meter;
mod model_files;
mod model_version;
mod models;
pub mod onnx;
mod other_threads;
mod outbox;
mod output_place;
mod readiness;
mod reschedule;
mod responder;
mod response_times;
mod rows;
mod runtime;
mod staged;
mod staged_tensors;
mod stop;
mod traced;

pub use adapter::{Adapted, BatchAdapter};
pub use compute::{Compute, InOrder};
pub use custom_metrics::{CustomMetrics, MetricChange, MetricMaker, MetricOwner, MetricSource};
pub use declared_outputs::DeclaredOutputs;
pub use deferred_report::{DeferredReport, Noted};
pub use device_access::DeviceAccess;
pub use imported_files::{ImportedFiles, ImportedState};
pub use job::{Job, Reschedule};
pub use load_stop::{LoadStop, LoadWatch};
pub use meter::{Meter, NoMeter, Outcome, RequestTimes, Times, now_ns};
pub use model_files::ModelFiles;
pub use model_version::{InFlight, ModelVersion};
pub use models::{ClassLabels, Infer, Models, ModelsDone, PendingVersions, RequestingModel};
pub use other_threads::{must_run_on_other_thread, requests_on_other_threads};
pub use outbox::{LastResponse, Outbox};
pub use output_place::{OutputPlace, too_small as output_too_small};
pub use readiness::{Readiness, ReadinessDone};
pub use responder::{Ended, Kept, Responder};
pub use response_times::{ResponseDurations, ResponseOutcome, ResponseTimes};
pub use rows::{Execute, Joined, Ragged, Work};
pub use runtime::{
    Awaited, Batch, CostBound, HostPolicySettings, Instance, InstanceSpec, Jobs, LoadContext, Model,
    ModelSuppliedRuntime, Runtime,
};
pub use staged::Staged;
pub use stop::{EarlyEnd, StopGuard};
