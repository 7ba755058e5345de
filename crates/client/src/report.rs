//! What does a server report about itself, and how is it read from JSON?

pub use nerite_request::report::{
    BatchReport, CudaRegionReport, Duration, ModelReport, ResponseReport, ServerReport, StatisticsReport,
    SystemRegionReport, TensorReport,
};
use nerite_tensor::DataType;
use serde_json::Value;

use crate::Error;

/// One entry of the repository index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexEntry {
    /// The model's name.
    pub name: String,
    /// The version. Empty for a model that was never loaded.
    pub version: String,
    /// `READY`, `UNAVAILABLE`, `LOADING` or `UNLOADING`. Empty for a model that was never loaded.
    pub state: String,
    /// Why it is in this state. May be empty.
    pub reason: String,
}

pub(crate) fn parse(json: &[u8]) -> Result<Value, Error> {
    serde_json::from_slice(json).map_err(|reason| Error::Answer(format!("no JSON: {reason}")))
}

pub(crate) fn datatype(name: &str) -> Result<DataType, Error> {
    DataType::from_name(name).ok_or_else(|| Error::Answer(format!("datatype '{name}' is unknown")))
}

pub(crate) fn version(text: &str) -> Result<i64, Error> {
    text.parse().map_err(|_| Error::Answer(format!("version '{text}' is no number")))
}

pub(crate) fn server(value: &Value) -> ServerReport {
    let extensions = items(value, "extensions").filter_map(|one| one.as_str().map(str::to_owned)).collect();
    ServerReport { name: text(value, "name"), version: text(value, "version"), extensions }
}

pub(crate) fn model(value: &Value) -> Result<ModelReport, Error> {
    let versions = items(value, "versions").map(|one| version(one.as_str().unwrap_or_default()));
    Ok(ModelReport {
        name: text(value, "name"),
        versions: versions.collect::<Result<_, _>>()?,
        platform: text(value, "platform"),
        inputs: items(value, "inputs").map(tensor).collect::<Result<_, _>>()?,
        outputs: items(value, "outputs").map(tensor).collect::<Result<_, _>>()?,
    })
}

pub(crate) fn index(value: &Value) -> Vec<IndexEntry> {
    let entry = |one: &Value| IndexEntry {
        name: text(one, "name"),
        version: text(one, "version"),
        state: text(one, "state"),
        reason: text(one, "reason"),
    };
    list(value).map(entry).collect()
}

pub(crate) fn system_regions(value: &Value) -> Vec<SystemRegionReport> {
    let region = |one: &Value| SystemRegionReport {
        name: text(one, "name"),
        key: text(one, "key"),
        offset: number(one, "offset"),
        byte_size: number(one, "byte_size"),
    };
    list(value).map(region).collect()
}

pub(crate) fn cuda_regions(value: &Value) -> Vec<CudaRegionReport> {
    let region = |one: &Value| CudaRegionReport {
        name: text(one, "name"),
        device_id: number(one, "device_id"),
        byte_size: number(one, "byte_size"),
    };
    list(value).map(region).collect()
}

pub(crate) fn statistics(value: &Value) -> Result<Vec<StatisticsReport>, Error> {
    items(value, "model_stats").map(one_statistics).collect()
}

fn one_statistics(value: &Value) -> Result<StatisticsReport, Error> {
    let whole = &value["inference_stats"];
    Ok(StatisticsReport {
        name: text(value, "name"),
        version: version(&text(value, "version"))?,
        last_inference_ms: number(value, "last_inference"),
        inference_count: number(value, "inference_count"),
        execution_count: number(value, "execution_count"),
        success: duration(whole, "success"),
        fail: duration(whole, "fail"),
        queue: duration(whole, "queue"),
        compute_input: duration(whole, "compute_input"),
        compute_infer: duration(whole, "compute_infer"),
        compute_output: duration(whole, "compute_output"),
        cache_hit: duration(whole, "cache_hit"),
        cache_miss: duration(whole, "cache_miss"),
        batches: items(value, "batch_stats").map(batch).collect(),
        responses: responses(&value["response_stats"]),
        ..StatisticsReport::default()
    })
}

fn batch(value: &Value) -> BatchReport {
    BatchReport {
        batch_size: number(value, "batch_size"),
        compute_input: duration(value, "compute_input"),
        compute_infer: duration(value, "compute_infer"),
        compute_output: duration(value, "compute_output"),
    }
}

/// The statistics of responses, sorted by position, because a JSON object has no order.
fn responses(value: &Value) -> Vec<ResponseReport> {
    let one = |(index, value): (&String, &Value)| {
        Some(ResponseReport {
            index: index.parse().ok()?,
            compute_infer: duration(value, "compute_infer"),
            compute_output: duration(value, "compute_output"),
            success: duration(value, "success"),
            fail: duration(value, "fail"),
            empty_response: duration(value, "empty_response"),
            cancel: duration(value, "cancel"),
        })
    };
    let mut all: Vec<_> = value.as_object().into_iter().flatten().filter_map(one).collect();
    all.sort_by_key(|one| one.index);
    all
}

fn duration(value: &Value, key: &str) -> Duration {
    Duration { count: number(&value[key], "count"), ns: number(&value[key], "ns") }
}

fn tensor(value: &Value) -> Result<TensorReport, Error> {
    let shape = items(value, "shape").filter_map(Value::as_i64).collect();
    Ok(TensorReport { name: text(value, "name"), datatype: datatype(&text(value, "datatype"))?, shape })
}

/// A string member. Empty if it is absent, as in protobuf.
pub(crate) fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

/// A number member. 0 if it is absent, as in protobuf.
pub(crate) fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_default()
}

/// The items of an array member. None if it is absent.
pub(crate) fn items<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    list(&value[key])
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_read_as_triton_writes_it() {
        let json = br#"{"name":"simple","versions":["1","3"],"platform":"onnxruntime_onnx",
            "inputs":[{"name":"INPUT0","datatype":"INT32","shape":[-1,16]}],"outputs":[]}"#;
        let report = model(&parse(json).expect("JSON")).expect("metadata");
        assert_eq!(report.versions, [1, 3]);
        let tensor = TensorReport { name: "INPUT0".into(), datatype: DataType::Int32, shape: vec![-1, 16] };
        assert_eq!(report.inputs, [tensor]);
    }

    #[test]
    fn an_index_entry_may_have_a_name_only() {
        let json = br#"[{"name":"a"},{"name":"b","version":"1","state":"READY"}]"#;
        let entries = index(&parse(json).expect("JSON"));
        assert_eq!((entries[0].state.as_str(), entries[1].state.as_str()), ("", "READY"));
    }

    #[test]
    fn responses_are_read_in_the_order_of_their_positions() {
        let json = br#"{"model_stats":[{"name":"m","version":"1","response_stats":{
            "10":{"fail":{"count":2,"ns":7}},"2":{"success":{"count":1,"ns":5}},"x":{}}}]}"#;
        let reports = statistics(&parse(json).expect("JSON")).expect("statistics");
        let read: Vec<_> = reports[0].responses.iter().map(|one| (one.index, one.success.ns, one.fail.count)).collect();
        assert_eq!(read, [(2, 5, 0), (10, 0, 2)]);
    }

    #[test]
    fn an_unknown_datatype_is_said_and_not_guessed() {
        assert_eq!(
            datatype("FP8").expect_err("unknown").to_string(),
            "answer not understood: datatype 'FP8' is unknown"
        );
    }
}
