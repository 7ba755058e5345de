//! Are requests with too many items refused while they are read?

use super::*;

#[test]
fn requests_with_too_many_items_are_refused() {
    let many = |count: usize, one: &dyn Fn(usize) -> String| (0..count).map(one).collect::<Vec<_>>().join(",");
    let inputs = |count| many(count, &|n| format!(r#"{{"name":"n{n}","datatype":"FP32","shape":[1],"data":[1]}}"#));
    assert_eq!(read(&format!(r#"{{"inputs":[{}]}}"#, inputs(4096))).unwrap().0.inputs.len(), 4096);
    let text = "a request has at most 4096 inputs, got 6000; send each input that the model's configuration names once";
    refuse(&format!(r#"{{"inputs":[{}]}}"#, inputs(6_000)), INVALID, text);
    let outputs = many(4097, &|n| format!(r#"{{"name":"n{n}"}}"#));
    let text =
        "a request has at most 4096 outputs, got 4097; ask for each output that the model's configuration names once";
    refuse(&format!(r#"{{"inputs":[],"outputs":[{outputs}]}}"#), INVALID, text);
    let parameters = many(300, &|n| format!(r#""p{n}":1"#));
    let text = "a request has at most 256 parameters of one tensor, got 300; send large data as an input";
    refuse(
        &one_input(&format!(r#""datatype":"FP32","shape":[1],"data":[1],"parameters":{{{parameters}}}"#)),
        INVALID,
        text,
    );
    refuse(&format!(r#"{{"inputs":[],"outputs":[{{"name":"O","parameters":{{{parameters}}}}}]}}"#), INVALID, text);
    let dims = many(5000, &|_| "1".to_string());
    let text = "Unable to parse 'shape': a request has at most 4096 dimensions in one shape, got 5000; send the shape that the \
                model's configuration describes";
    refuse(&json_input("FP32", &format!("[{dims}]"), "[1]"), INVALID, text);
}

#[test]
fn a_model_with_more_inputs_accepts_more() {
    let inputs: Vec<_> = (0..5000).map(|n| binary(&format!("n{n}"), "0")).collect();
    let json = format!(r#"{{"inputs":[{}]}}"#, inputs.join(","));
    let tail = Buffer::empty();
    let tensors_max = TensorsMax::of_model(5000, 1);
    let text = InferText { json: json.as_bytes(), tail: &tail, model: "m", version: "", bytes_max: MAX, tensors_max };
    assert_eq!(read_infer(&text).unwrap().0.inputs.len(), 5000);
}
