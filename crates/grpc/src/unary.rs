//! How are all calls except inferences answered?

use nerite_api::{Api, Changeable, Protocol, Status, aside, on_disk};
use nerite_memory::MemoryReservation;
use nerite_request::limits::INLINE_WORK_BYTES_MAX;
use nerite_request::setting::LoadOptions;
use nerite_wire::proto::health::health_check_response::ServingStatus;
use nerite_wire::proto::health::{HealthCheckRequest, HealthCheckResponse};
use nerite_wire::proto::messages::{
    CudaSharedMemoryRegisterRequest, CudaSharedMemoryRegisterResponse, CudaSharedMemoryStatusRequest,
    CudaSharedMemoryStatusResponse, CudaSharedMemoryUnregisterRequest, CudaSharedMemoryUnregisterResponse,
    LogSettingsRequest, LogSettingsResponse, ModelConfigRequest, ModelConfigResponse, ModelMetadataRequest,
    ModelMetadataResponse, ModelReadyRequest, ModelReadyResponse, ModelStatisticsRequest, ModelStatisticsResponse,
    RepositoryIndexRequest, RepositoryIndexResponse, RepositoryModelLoadRequest, RepositoryModelLoadResponse,
    RepositoryModelUnloadRequest, RepositoryModelUnloadResponse, ServerLiveRequest, ServerLiveResponse,
    ServerMetadataRequest, ServerMetadataResponse, ServerReadyRequest, ServerReadyResponse,
    SystemSharedMemoryRegisterRequest, SystemSharedMemoryRegisterResponse, SystemSharedMemoryStatusRequest,
    SystemSharedMemoryStatusResponse, SystemSharedMemoryUnregisterRequest, SystemSharedMemoryUnregisterResponse,
    TraceSettingRequest, TraceSettingResponse,
};
use nerite_wire::proto::{
    Chain, Chunks, check_load_parameters, check_repository, load_options, log_change, trace_change, unload_dependents,
};
use prost::Message;

use crate::call::Call;
use crate::compress::framed;
use crate::failure::Failure;

/// Memory is reserved before this many bytes or more are decoded from a message.
const RESERVED_BYTES_MIN: usize = 1 << 20;
/// Bytes that are reserved for each byte of a message. For example, an empty string has two bytes in a message. Decoded, it takes 24 bytes, in a
/// vector that may have twice the capacity.
const READ_GROWTH: usize = 64;
/// The same for files, which are copied if they arrived in pieces.
const FILE_GROWTH: usize = 1;

/// Decodes the request, calls `api`, and encodes the answer.
pub(crate) async fn answer(api: &Api, call: Call, message: Chain) -> Result<Chunks, Failure> {
    match call {
        Call::HealthCheck | Call::ServerLive | Call::ServerReady | Call::ModelReady => health(api, call, message).await,
        Call::ServerMetadata | Call::ModelMetadata | Call::ModelConfig | Call::ModelStatistics => {
            describe(api, call, message).await
        }
        Call::RepositoryIndex | Call::RepositoryModelLoad | Call::RepositoryModelUnload => {
            repository(api, call, message).await
        }
        Call::SystemSharedMemoryStatus
        | Call::SystemSharedMemoryRegister
        | Call::SystemSharedMemoryUnregister
        | Call::CudaSharedMemoryStatus
        | Call::CudaSharedMemoryRegister
        | Call::CudaSharedMemoryUnregister => shared_memory(api, call, message).await,
        Call::TraceSetting | Call::LogSettings => settings(api, call, message),
        Call::ModelInfer | Call::ModelStreamInfer => Err(Failure::UNKNOWN_CALL),
    }
}

fn read<M: Message + Default>(message: Chain) -> Result<M, Failure> {
    let _reservation = reserve(&message, READ_GROWTH)?;
    Ok(M::decode(message.into_reader())?)
}

/// Decodes the model's name and the load options. Files are copied only if they arrived in pieces.
fn read_load(message: Chain) -> Result<(String, LoadOptions), Failure> {
    check_load_parameters(&message)?;
    let _reservation = reserve(&message, FILE_GROWTH)?;
    let mut request = RepositoryModelLoadRequest::decode(message.into_reader())?;
    let options = load_options(&mut request)?;
    Ok((request.model_name, options))
}

/// Reserves memory for decoding a message: `growth` bytes for each of its bytes.
fn reserve(message: &Chain, growth: usize) -> Result<MemoryReservation, Failure> {
    // The files of a load that is in one piece are not copied. That piece may lie on disk.
    if message.len() < RESERVED_BYTES_MIN || message.count() == 1 && growth == FILE_GROWTH {
        return Ok(MemoryReservation::none());
    }
    let reservation = MemoryReservation::take(message.len().saturating_mul(growth));
    Ok(reservation.map_err(|refused| Status::no_memory("what a request says", refused))?)
}

async fn health(api: &Api, call: Call, message: Chain) -> Result<Chunks, Failure> {
    match call {
        Call::ServerLive => {
            let ServerLiveRequest {} = read(message)?;
            framed(&ServerLiveResponse { live: api.live() })
        }
        Call::ServerReady => {
            let ServerReadyRequest {} = read(message)?;
            framed(&ServerReadyResponse { ready: api.ready().await.is_ok() })
        }
        Call::ModelReady => {
            let request: ModelReadyRequest = read(message)?;
            api.note_inference(&request.name, &request.version, "");
            framed(&ModelReadyResponse { ready: api.model_ready(&request.name, &request.version).await? })
        }
        _ => {
            let _: HealthCheckRequest = read(message)?;
            let status = if api.ready().await.is_ok() { ServingStatus::Serving } else { ServingStatus::NotServing };
            framed(&HealthCheckResponse { status: status.into() })
        }
    }
}

async fn describe(api: &Api, call: Call, message: Chain) -> Result<Chunks, Failure> {
    match call {
        Call::ServerMetadata => {
            let ServerMetadataRequest {} = read(message)?;
            framed(&ServerMetadataResponse::from(api.server_report()))
        }
        Call::ModelMetadata => {
            let request: ModelMetadataRequest = read(message)?;
            let ModelMetadataRequest { name, version } = &request;
            api.note_inference(name, version, "");
            let report = api.find_or_load(name, || api.model_report(name, version)).await?;
            framed(&ModelMetadataResponse::from(report))
        }
        Call::ModelConfig => {
            let request: ModelConfigRequest = read(message)?;
            let ModelConfigRequest { name, version } = &request;
            api.note_inference(name, version, "");
            let config = api.find_or_load(name, || api.model_config(name, version)).await?;
            let is_short = config.encoded_len() <= INLINE_WORK_BYTES_MAX;
            let write = move || framed(&ModelConfigResponse { config: Some(config.as_ref().clone()) });
            if is_short { write() } else { aside(api.account(), write).await? }
        }
        _ => {
            let request: ModelStatisticsRequest = read(message)?;
            api.note_inference(&request.name, &request.version, "");
            let (reader, is_one) = (api.clone(), !request.name.is_empty());
            let write =
                move || framed(&ModelStatisticsResponse::from(reader.statistics(&request.name, &request.version)?));
            // There may be many models.
            if is_one { write() } else { aside(api.account(), write).await? }
        }
    }
}

async fn repository(api: &Api, call: Call, message: Chain) -> Result<Chunks, Failure> {
    match call {
        Call::RepositoryIndex => {
            let request: RepositoryIndexRequest = read(message)?;
            check_repository(&request.repository_name)?;
            let reader = api.clone();
            let write = move || framed(&RepositoryIndexResponse::from(reader.index(request.ready)?));
            on_disk(api.account(), write).await?
        }
        Call::RepositoryModelLoad => {
            let (model, options) = if message.len() <= INLINE_WORK_BYTES_MAX {
                read_load(message)?
            } else {
                aside(api.account(), move || read_load(message)).await??
            };
            api.load(&model, options).await?;
            framed(&RepositoryModelLoadResponse {})
        }
        _ => {
            let request: RepositoryModelUnloadRequest = read(message)?;
            let dependents = unload_dependents(&request)?;
            api.unload(&request.model_name, dependents).await?;
            framed(&RepositoryModelUnloadResponse {})
        }
    }
}

async fn shared_memory(api: &Api, call: Call, message: Chain) -> Result<Chunks, Failure> {
    match call {
        Call::SystemSharedMemoryStatus => {
            let request: SystemSharedMemoryStatusRequest = read(message)?;
            let (reader, is_one) = (api.clone(), !request.name.is_empty());
            let write = move || {
                reader.write_system_status(&request.name, |found| {
                    framed(&SystemSharedMemoryStatusResponse::from(found))
                })?
            };
            // There may be many regions with long names.
            if is_one { write() } else { aside(api.account(), write).await? }
        }
        Call::SystemSharedMemoryRegister => {
            let SystemSharedMemoryRegisterRequest { name, key, offset, byte_size } = read(message)?;
            api.register_own_system(name, key, offset, byte_size).await?;
            framed(&SystemSharedMemoryRegisterResponse {})
        }
        Call::SystemSharedMemoryUnregister => {
            let request: SystemSharedMemoryUnregisterRequest = read(message)?;
            api.change_own_regions(move |api| api.unregister_system(&request.name)).await?;
            framed(&SystemSharedMemoryUnregisterResponse {})
        }
        Call::CudaSharedMemoryStatus => {
            let request: CudaSharedMemoryStatusRequest = read(message)?;
            let (reader, is_one) = (api.clone(), !request.name.is_empty());
            let write = move || {
                reader.write_cuda_status(&request.name, |found| framed(&CudaSharedMemoryStatusResponse::from(found)))?
            };
            if is_one { write() } else { aside(api.account(), write).await? }
        }
        Call::CudaSharedMemoryRegister => {
            let request: CudaSharedMemoryRegisterRequest = read(message)?;
            api.change_own_regions(move |api| {
                api.register_cuda(&request.name, &request.raw_handle, request.device_id, request.byte_size)
            })
            .await?;
            framed(&CudaSharedMemoryRegisterResponse {})
        }
        _ => {
            let request: CudaSharedMemoryUnregisterRequest = read(message)?;
            api.change_own_regions(move |api| api.unregister_cuda(&request.name)).await?;
            framed(&CudaSharedMemoryUnregisterResponse {})
        }
    }
}

fn settings(api: &Api, call: Call, message: Chain) -> Result<Chunks, Failure> {
    if call == Call::TraceSetting {
        let request: TraceSettingRequest = read(message)?;
        let change = trace_change(request.settings)?;
        let settings = if change.is_empty() {
            api.trace_settings(&request.model_name)?
        } else {
            api.allow_change(Protocol::Grpc, Changeable::Trace)?;
            api.change_trace(&request.model_name, change)?
        };
        return framed(&TraceSettingResponse::from(settings));
    }
    let request: LogSettingsRequest = read(message)?;
    let settings = if request.settings.is_empty() {
        api.log_settings()
    } else {
        api.allow_change(Protocol::Grpc, Changeable::Log)?;
        api.change_log(log_change(request.settings)?)?
    };
    framed(&LogSettingsResponse::from(settings))
}
