//! How are reports about the server encoded as gRPC messages?

use nerite_request::report::{
    self, BatchReport, CudaRegionReport, Duration, IndexEntry, ModelReport, ResponseReport, ServerReport,
    StatisticsReport, SystemRegionReport, TensorReport,
};
use nerite_request::setting::{LogSettings, TraceSettings, log_names};

use super::messages::log_settings_response::setting_value::ParameterChoice;
use super::messages::model_metadata_response::TensorMetadata;
use super::messages::repository_index_response::ModelIndex;
use super::messages::{
    CudaSharedMemoryStatusResponse, InferBatchStatistics, InferResponseStatistics, InferStatistics,
    LogSettingsResponse, MemoryUsage, ModelMetadataResponse, ModelStatistics, ModelStatisticsResponse,
    RepositoryIndexResponse, ServerMetadataResponse, StatisticDuration, SystemSharedMemoryStatusResponse,
    TraceSettingResponse, cuda_shared_memory_status_response, log_settings_response,
    system_shared_memory_status_response, trace_setting_response,
};

impl From<ServerReport> for ServerMetadataResponse {
    fn from(report: ServerReport) -> Self {
        ServerMetadataResponse { name: report.name, version: report.version, extensions: report.extensions }
    }
}

impl From<ModelReport> for ModelMetadataResponse {
    fn from(report: ModelReport) -> Self {
        ModelMetadataResponse {
            name: report.name,
            versions: report.versions.iter().map(i64::to_string).collect(),
            platform: report.platform,
            inputs: report.inputs.into_iter().map(TensorMetadata::from).collect(),
            outputs: report.outputs.into_iter().map(TensorMetadata::from).collect(),
        }
    }
}

impl From<TensorReport> for TensorMetadata {
    fn from(report: TensorReport) -> Self {
        TensorMetadata { name: report.name, datatype: report.datatype.name().to_owned(), shape: report.shape }
    }
}

impl From<Vec<IndexEntry>> for RepositoryIndexResponse {
    fn from(entries: Vec<IndexEntry>) -> Self {
        let models = entries.into_iter().map(|entry| ModelIndex {
            name: entry.name,
            version: entry.version.map(|version| version.to_string()).unwrap_or_default(),
            state: entry.state.to_owned(),
            reason: entry.reason,
        });
        RepositoryIndexResponse { models: models.collect() }
    }
}

impl From<Vec<StatisticsReport>> for ModelStatisticsResponse {
    fn from(reports: Vec<StatisticsReport>) -> Self {
        ModelStatisticsResponse { model_stats: reports.into_iter().map(ModelStatistics::from).collect() }
    }
}

impl From<StatisticsReport> for ModelStatistics {
    fn from(report: StatisticsReport) -> Self {
        ModelStatistics {
            name: report.name,
            version: report.version.to_string(),
            last_inference: report.last_inference_ms,
            inference_count: report.inference_count,
            execution_count: report.execution_count,
            inference_stats: Some(InferStatistics {
                success: duration(report.success),
                fail: duration(report.fail),
                queue: duration(report.queue),
                compute_input: duration(report.compute_input),
                compute_infer: duration(report.compute_infer),
                compute_output: duration(report.compute_output),
                cache_hit: duration(report.cache_hit),
                cache_miss: duration(report.cache_miss),
            }),
            batch_stats: report.batches.into_iter().map(InferBatchStatistics::from).collect(),
            memory_usage: report.memory.into_iter().map(MemoryUsage::from).collect(),
            response_stats: report.responses.into_iter().map(response_entry).collect(),
        }
    }
}

impl From<report::MemoryUsage> for MemoryUsage {
    fn from(usage: report::MemoryUsage) -> Self {
        MemoryUsage { r#type: usage.kind.to_owned(), id: usage.id, byte_size: usage.bytes }
    }
}

impl From<BatchReport> for InferBatchStatistics {
    fn from(report: BatchReport) -> Self {
        InferBatchStatistics {
            batch_size: report.batch_size,
            compute_input: duration(report.compute_input),
            compute_infer: duration(report.compute_infer),
            compute_output: duration(report.compute_output),
        }
    }
}

fn response_entry(report: ResponseReport) -> (String, InferResponseStatistics) {
    let statistics = InferResponseStatistics {
        compute_infer: duration(report.compute_infer),
        compute_output: duration(report.compute_output),
        success: duration(report.success),
        fail: duration(report.fail),
        empty_response: duration(report.empty_response),
        cancel: duration(report.cancel),
    };
    (report.index.to_string(), statistics)
}

#[allow(clippy::unnecessary_wraps)] // The generated fields are optional, and a client expects all of them.
fn duration(duration: Duration) -> Option<StatisticDuration> {
    Some(StatisticDuration { count: duration.count, ns: duration.ns })
}

impl From<Vec<SystemRegionReport>> for SystemSharedMemoryStatusResponse {
    fn from(reports: Vec<SystemRegionReport>) -> Self {
        let regions = reports.into_iter().map(|report| {
            let SystemRegionReport { name, key, offset, byte_size } = report;
            let status = system_shared_memory_status_response::RegionStatus { name, key, offset, byte_size };
            (status.name.clone(), status)
        });
        SystemSharedMemoryStatusResponse { regions: regions.collect() }
    }
}

impl From<Vec<CudaRegionReport>> for CudaSharedMemoryStatusResponse {
    fn from(reports: Vec<CudaRegionReport>) -> Self {
        let regions = reports.into_iter().map(|report| {
            let CudaRegionReport { name, device_id, byte_size } = report;
            let status = cuda_shared_memory_status_response::RegionStatus { name, device_id, byte_size };
            (status.name.clone(), status)
        });
        CudaSharedMemoryStatusResponse { regions: regions.collect() }
    }
}

impl From<TraceSettings> for TraceSettingResponse {
    fn from(settings: TraceSettings) -> Self {
        let settings = settings.into_iter().map(|(name, value)| (name, trace_setting_response::SettingValue { value }));
        TraceSettingResponse { settings: settings.collect() }
    }
}

impl From<LogSettings> for LogSettingsResponse {
    fn from(settings: LogSettings) -> Self {
        let all = [
            (log_names::FILE, ParameterChoice::StringParam(settings.file)),
            (log_names::INFO, ParameterChoice::BoolParam(settings.info)),
            (log_names::WARNING, ParameterChoice::BoolParam(settings.warning)),
            (log_names::ERROR, ParameterChoice::BoolParam(settings.error)),
            (log_names::VERBOSE_LEVEL, ParameterChoice::Uint32Param(settings.verbose_level)),
            (log_names::FORMAT, ParameterChoice::StringParam(settings.format)),
        ];
        let value = |choice| log_settings_response::SettingValue { parameter_choice: Some(choice) };
        LogSettingsResponse { settings: all.map(|(name, choice)| (name.to_owned(), value(choice))).into() }
    }
}
