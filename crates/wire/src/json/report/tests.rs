//! Does each report have the keys that Triton writes, in the same order?

#![allow(clippy::unwrap_used)]

use nerite_tensor::DataType;

use super::*;

#[track_caller]
fn check(got: Vec<u8>, text: &str) {
    assert_eq!(String::from_utf8(got).unwrap(), text);
}

#[test]
fn metadata_has_its_keys_in_order() {
    let server =
        ServerReport { name: "triton".into(), version: "2.73.0".into(), extensions: vec!["a".into(), "b".into()] };
    check(write_server(&server), r#"{"name":"triton","version":"2.73.0","extensions":["a","b"]}"#);
    let tensor = |name: &str| TensorReport { name: name.into(), datatype: DataType::Int32, shape: vec![-1, 16] };
    let model = ModelReport {
        name: "simple".into(),
        versions: vec![1, 3],
        platform: "onnxruntime_onnx".into(),
        inputs: vec![tensor("IN")],
        outputs: vec![tensor("OUT")],
    };
    check(
        write_model(&model),
        r#"{"name":"simple","versions":["1","3"],"platform":"onnxruntime_onnx","inputs":[{"name":"IN","datatype":"INT32","shape":[-1,16]}],"outputs":[{"name":"OUT","datatype":"INT32","shape":[-1,16]}]}"#,
    );
}

#[test]
fn the_index_omits_unknown_fields() {
    check(write_index(&[]), "[]");
    let never = IndexEntry { name: "a".into(), ..IndexEntry::default() };
    let gone = IndexEntry {
        name: "b".into(),
        version: Some(1),
        state: "UNAVAILABLE",
        reason: "unloaded".into(),
        ..IndexEntry::default()
    };
    check(
        write_index(&[never, gone]),
        r#"[{"name":"a"},{"name":"b","version":"1","state":"UNAVAILABLE","reason":"unloaded"}]"#,
    );
}

#[test]
fn statistics_have_every_duration() {
    let mut model =
        StatisticsReport { name: "m".into(), version: 2, last_inference_ms: 5, ..StatisticsReport::default() };
    model.memory.push(MemoryUsage { kind: "GPU", id: 1, bytes: 9 });
    model.success.add(7);
    model.batches.push(BatchReport { batch_size: 4, ..BatchReport::default() });
    for index in [0, 10] {
        let (mut response, [a, b, c, d, e, f]) =
            (ResponseReport { index, ..ResponseReport::default() }, [1, 2, 3, 4, 5, 6]);
        response.compute_infer.add(a);
        response.compute_output.add(b);
        response.success.add(c);
        response.fail.add(d);
        response.empty_response.add(e);
        response.cancel.add(f);
        model.responses.push(response);
    }
    let response = r#"{"compute_infer":{"count":1,"ns":1},"compute_output":{"count":1,"ns":2},"success":{"count":1,"ns":3},"fail":{"count":1,"ns":4},"empty_response":{"count":1,"ns":5},"cancel":{"count":1,"ns":6}}"#;
    let zero = r#"{"count":0,"ns":0}"#;
    check(
        write_statistics(&[model]),
        &format!(
            r#"{{"model_stats":[{{"name":"m","version":"2","last_inference":5,"inference_count":0,"execution_count":0,"inference_stats":{{"success":{{"count":1,"ns":7}},"fail":{zero},"queue":{zero},"compute_input":{zero},"compute_infer":{zero},"compute_output":{zero},"cache_hit":{zero},"cache_miss":{zero}}},"response_stats":{{"0":{response},"10":{response}}},"batch_stats":[{{"batch_size":4,"compute_input":{zero},"compute_infer":{zero},"compute_output":{zero}}}],"memory_usage":[{{"type":"GPU","id":1,"byte_size":9}}]}}]}}"#
        ),
    );
}

#[test]
fn regions_and_settings_have_their_keys_in_order() {
    let region = SystemRegionReport { name: "r".into(), key: "/k".into(), offset: 4096, byte_size: 64 };
    check(write_system_status(&[region]), r#"[{"name":"r","key":"/k","offset":4096,"byte_size":64}]"#);
    let region = CudaRegionReport { name: "c".into(), device_id: 1, byte_size: 64 };
    check(write_cuda_status(&[region]), r#"[{"name":"c","device_id":1,"byte_size":64}]"#);
    let trace = vec![("trace_level".into(), vec!["OFF".into()]), ("trace_rate".into(), vec!["1000".into()])];
    check(write_trace_settings(&trace), r#"{"trace_level":["OFF"],"trace_rate":"1000"}"#);
    let log = LogSettings {
        file: String::new(),
        info: true,
        warning: true,
        error: false,
        verbose_level: 0,
        format: "default".into(),
    };
    check(
        write_log_settings(&log),
        r#"{"log_file":"","log_info":true,"log_warning":true,"log_error":false,"log_verbose_level":0,"log_format":"default"}"#,
    );
    check(write_error("it's \"bad\""), r#"{"error":"it's \"bad\""}"#);
}
