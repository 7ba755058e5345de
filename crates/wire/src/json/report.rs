//! How are metadata, statistics, status and settings written as JSON?

use nerite_request::report::{
    BatchReport, CudaRegionReport, Duration, IndexEntry, MemoryUsage, ModelReport, ResponseReport, ServerReport,
    StatisticsReport, SystemRegionReport, TensorReport,
};
use nerite_request::setting::{LogSettings, TraceSettings, log_names};

use super::write::Writer;

/// `{"error":"…"}`.
pub fn write_error(message: &str) -> Vec<u8> {
    object(|w| w.key("error").string(message.as_bytes()))
}

/// The server's metadata.
pub fn write_server(server: &ServerReport) -> Vec<u8> {
    object(|w| {
        w.key("name").string(server.name.as_bytes());
        w.key("version").string(server.version.as_bytes());
        w.key("extensions").array(|w| server.extensions.iter().for_each(|name| w.string(name.as_bytes())));
    })
}

/// A model's metadata.
pub fn write_model(model: &ModelReport) -> Vec<u8> {
    object(|w| {
        w.key("name").string(model.name.as_bytes());
        w.key("versions").array(|w| model.versions.iter().for_each(|n| w.string(n.to_string().as_bytes())));
        w.key("platform").string(model.platform.as_bytes());
        w.key("inputs").array(|w| model.inputs.iter().for_each(|tensor| write_tensor(w, tensor)));
        w.key("outputs").array(|w| model.outputs.iter().for_each(|tensor| write_tensor(w, tensor)));
    })
}

/// The repository index.
pub fn write_index(entries: &[IndexEntry]) -> Vec<u8> {
    array(entries, |w, entry| {
        w.key("name").string(entry.name.as_bytes());
        if let Some(version) = entry.version {
            w.key("version").string(version.to_string().as_bytes());
        }
        if !entry.state.is_empty() {
            w.key("state").string(entry.state.as_bytes());
        }
        if !entry.reason.is_empty() {
            w.key("reason").string(entry.reason.as_bytes());
        }
    })
}

/// Statistics of any number of model versions.
pub fn write_statistics(models: &[StatisticsReport]) -> Vec<u8> {
    object(|w| {
        w.key("model_stats").array(|w| models.iter().for_each(|model| w.object(|w| write_model_statistics(w, model))));
    })
}

/// The requested system regions.
pub fn write_system_status(regions: &[SystemRegionReport]) -> Vec<u8> {
    array(regions, |w, region| {
        w.key("name").string(region.name.as_bytes());
        w.key("key").string(region.key.as_bytes());
        w.key("offset").unsigned(region.offset);
        w.key("byte_size").unsigned(region.byte_size);
    })
}

/// The requested CUDA regions.
pub fn write_cuda_status(regions: &[CudaRegionReport]) -> Vec<u8> {
    array(regions, |w, region| {
        w.key("name").string(region.name.as_bytes());
        w.key("device_id").unsigned(region.device_id);
        w.key("byte_size").unsigned(region.byte_size);
    })
}

/// Trace settings. The levels are an array, other values are strings. Several values of one setting become one string with commas. Triton repeats the
/// key instead, and readers of JSON keep only the last value.
pub fn write_trace_settings(settings: &TraceSettings) -> Vec<u8> {
    object(|w| {
        for (name, values) in settings {
            w.key(name);
            if name == "trace_level" {
                w.array(|w| values.iter().for_each(|value| w.string(value.as_bytes())));
            } else {
                w.string(values.join(",").as_bytes());
            }
        }
    })
}

/// The log settings.
pub fn write_log_settings(settings: &LogSettings) -> Vec<u8> {
    object(|w| {
        w.key(log_names::FILE).string(settings.file.as_bytes());
        w.key(log_names::INFO).bool(settings.info);
        w.key(log_names::WARNING).bool(settings.warning);
        w.key(log_names::ERROR).bool(settings.error);
        w.key(log_names::VERBOSE_LEVEL).unsigned(settings.verbose_level.into());
        w.key(log_names::FORMAT).string(settings.format.as_bytes());
    })
}

fn object(members: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::with_capacity(256);
    writer.object(members);
    writer.into_bytes()
}

fn array<T>(items: &[T], members: impl Fn(&mut Writer, &T)) -> Vec<u8> {
    let mut writer = Writer::with_capacity(2 + 128 * items.len());
    writer.array(|w| items.iter().for_each(|item| w.object(|w| members(w, item))));
    writer.into_bytes()
}

fn write_tensor(w: &mut Writer, tensor: &TensorReport) {
    w.object(|w| {
        w.key("name").string(tensor.name.as_bytes());
        w.key("datatype").string(tensor.datatype.name().as_bytes());
        w.key("shape").array(|w| tensor.shape.iter().for_each(|dim| w.signed(*dim)));
    });
}

fn write_model_statistics(w: &mut Writer, model: &StatisticsReport) {
    w.key("name").string(model.name.as_bytes());
    w.key("version").string(model.version.to_string().as_bytes());
    w.key("last_inference").unsigned(model.last_inference_ms);
    w.key("inference_count").unsigned(model.inference_count);
    w.key("execution_count").unsigned(model.execution_count);
    w.key("inference_stats").object(|w| {
        for (name, duration) in [
            ("success", model.success),
            ("fail", model.fail),
            ("queue", model.queue),
            ("compute_input", model.compute_input),
            ("compute_infer", model.compute_infer),
            ("compute_output", model.compute_output),
            ("cache_hit", model.cache_hit),
            ("cache_miss", model.cache_miss),
        ] {
            write_duration(w.key(name), duration);
        }
    });
    w.key("response_stats").object(|w| model.responses.iter().for_each(|response| write_response(w, response)));
    w.key("batch_stats").array(|w| model.batches.iter().for_each(|batch| write_batch(w, batch)));
    w.key("memory_usage").array(|w| model.memory.iter().for_each(|usage| write_memory(w, *usage)));
}

fn write_memory(w: &mut Writer, usage: MemoryUsage) {
    w.object(|w| {
        w.key("type").string(usage.kind.as_bytes());
        w.key("id").signed(usage.id);
        w.key("byte_size").unsigned(usage.bytes);
    });
}

fn write_batch(w: &mut Writer, batch: &BatchReport) {
    w.object(|w| {
        w.key("batch_size").unsigned(batch.batch_size);
        write_duration(w.key("compute_input"), batch.compute_input);
        write_duration(w.key("compute_infer"), batch.compute_infer);
        write_duration(w.key("compute_output"), batch.compute_output);
    });
}

fn write_response(w: &mut Writer, response: &ResponseReport) {
    w.key(&response.index.to_string()).object(|w| {
        for (name, duration) in [
            ("compute_infer", response.compute_infer),
            ("compute_output", response.compute_output),
            ("success", response.success),
            ("fail", response.fail),
            ("empty_response", response.empty_response),
            ("cancel", response.cancel),
        ] {
            write_duration(w.key(name), duration);
        }
    });
}

fn write_duration(w: &mut Writer, duration: Duration) {
    w.object(|w| {
        w.key("count").unsigned(duration.count);
        w.key("ns").unsigned(duration.ns);
    });
}

#[cfg(test)]
mod tests;
