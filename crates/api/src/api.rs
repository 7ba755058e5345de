//! Which calls are there?

use std::sync::Arc;

use nerite_config::ModelConfig;
use nerite_request::report::{
    CudaRegionReport, IndexEntry, ModelReport, ServerReport, StatisticsReport, SystemRegionReport,
};
use nerite_request::setting::{LoadOptions, LogChange, LogSettings, TraceChange, TraceSettings};
use nerite_request::{Ask, Cancel, Response, Status};

use crate::access::{Category, Protocol};

/// The server as its clients see it. Cheap to clone.
#[derive(Clone)]
pub struct Api {}

#[allow(unused_variables, clippy::unused_async, clippy::todo, missing_docs)]
impl Api {
    /// Whether a call of `category` may go on; `header` looks one up by its lower-case name.
    pub fn allow<'h>(&self, protocol: Protocol, category: Category, header: impl Fn(&str) -> Option<&'h [u8]>) -> Result<(), Status> { todo!() }
    /// Limits and patterns the front ends need (max input size in bytes).
    pub fn http_input_bytes_max(&self) -> u64 { todo!() }
    /// Whether headers of this name become string parameters of an inference request on this protocol. Err: the name is reserved.
    pub fn forwards_header(&self, protocol: Protocol, name: &str) -> Result<bool, Status> { todo!() }

    /// The process answers.
    pub fn live(&self) -> bool { todo!() }
    /// All models are ready (strictly so, by default), and the server is not stopping.
    pub fn ready(&self) -> bool { todo!() }
    /// The server takes no new work except inference.
    pub fn stopping(&self) -> bool { todo!() }
    /// Whether a model version can take requests; unknown models are simply not ready. Err only for a version that is no number.
    pub fn model_ready(&self, model: &str, version: &str) -> Result<bool, Status> { todo!() }

    pub fn server_report(&self) -> Result<ServerReport, Status> { todo!() }
    pub fn model_report(&self, model: &str, version: &str) -> Result<ModelReport, Status> { todo!() }
    pub fn model_config(&self, model: &str, version: &str) -> Result<Arc<ModelConfig>, Status> { todo!() }
    /// Statistics of one version, of all ready versions of one model, or (empty name) of all models.
    pub fn statistics(&self, model: &str, version: &str) -> Result<Vec<StatisticsReport>, Status> { todo!() }

    pub fn index(&self, ready_only: bool) -> Result<Vec<IndexEntry>, Status> { todo!() }
    pub async fn load(&self, model: &str, options: LoadOptions) -> Result<(), Status> { todo!() }
    pub async fn unload(&self, model: &str, dependents: bool) -> Result<(), Status> { todo!() }

    pub fn register_system(&self, name: &str, key: &str, offset: u64, byte_size: u64) -> Result<(), Status> { todo!() }
    pub fn register_cuda(&self, name: &str, raw_handle: &[u8], device_id: i64, byte_size: u64) -> Result<(), Status> { todo!() }
    /// Unregisters one system region, or (empty name) all.
    pub fn unregister_system(&self, name: &str) -> Result<(), Status> { todo!() }
    /// Unregisters one CUDA region, or (empty name) all.
    pub fn unregister_cuda(&self, name: &str) -> Result<(), Status> { todo!() }
    /// One system region, or (empty name) all, by name.
    pub fn system_status(&self, name: &str) -> Result<Vec<SystemRegionReport>, Status> { todo!() }
    /// One CUDA region, or (empty name) all, by name.
    pub fn cuda_status(&self, name: &str) -> Result<Vec<CudaRegionReport>, Status> { todo!() }
    /// Whether clients may register regions at all; HTTP asks before it reads a body.
    pub fn check_client_shm(&self) -> Result<(), Status> { todo!() }

    /// Settings of the server, or of one model.
    pub fn trace_settings(&self, model: &str) -> Result<TraceSettings, Status> { todo!() }
    pub fn change_trace(&self, model: &str, change: TraceChange) -> Result<TraceSettings, Status> { todo!() }
    pub fn log_settings(&self) -> LogSettings { todo!() }
    /// A bad format is INVALID_ARG `invalid argument for log_format, got: x`; HTTP words it differently (wire.md §12).
    pub fn change_log(&self, change: LogChange) -> Result<LogSettings, Status> { todo!() }

    /// What can be said of an inference before its body is read: the model and version exist and are ready, and the protocol's
    /// single-response call can serve it (a decoupled model is UNSUPPORTED, in each protocol's own words).
    pub fn check_infer(&self, protocol: Protocol, model: &str, version: &str) -> Result<(), Status> { todo!() }
    /// One request, one response (its `error` set when it failed). Dropping the future before it is done cancels the request.
    pub async fn infer(&self, ask: Ask) -> Response { todo!() }
    /// One request, any number of responses handed to `sink` as they come, from whatever thread made them, the last marked
    /// `last`. A refusal at admission is the Err: `sink` is not called then.
    pub fn infer_stream(&self, ask: Ask, cancel: Cancel, sink: impl FnMut(Response) + Send + 'static) -> Result<(), Status> { todo!() }
    /// Whether the model is decoupled (its responses may interleave with those of other requests of a stream).
    pub fn is_decoupled(&self, model: &str, version: &str) -> bool { todo!() }
}
