//! Does the backend keep the contract of all runtimes?
#![allow(clippy::unwrap_used)]

use std::path::Path;

use nerite_backend::conformance::{Case, Fixture, check_runtime, context};
use nerite_tensor::{Buffer, Tensor};

use super::*;

fn loading(more: &str) -> LoadContext {
    let text = format!("name: \"m\" backend: \"scale\" {more}");
    context(Path::new("m"), nerite_config::parse_text("m/config.pbtxt", text.as_bytes()).unwrap())
}

const SIGNATURE: &str =
    "input { name: \"X\" data_type: TYPE_FP32 dims: -1 } output { name: \"Y\" data_type: TYPE_FP32 dims: -1 }";

fn floats(name: &str, numbers: &[f32]) -> Tensor {
    let shape = [numbers.len() as i64].into_iter().collect();
    let data = Buffer::from_numbers(numbers.to_vec());
    Tensor { name: name.into(), datatype: DataType::Fp32, shape, data }
}

fn case(x: &[f32], y: &[f32]) -> Case {
    Case { inputs: vec![floats("X", x)], outputs: vec![floats("Y", y)] }
}

#[test]
fn scale_keeps_the_contract_of_all_runtimes() {
    let context = loading(&format!("{SIGNATURE} parameters {{ key: \"factor\" value {{ string_value: \"-2\" }} }}"));
    let cases = vec![case(&[1.0, 2.5, -3.0], &[-2.0, -5.0, 6.0]), case(&[7.0; 5000], &[-14.0; 5000])];
    let odd = Tensor { data: Buffer::from(vec![0u8; 5]), ..floats("X", &[0.0]) };
    check_runtime(&Scale, &Fixture { context, cases, faulty: Some(vec![odd]) });
}

#[track_caller]
fn check_refused(more: &str, text: &str) {
    let refused = Scale.load(&loading(more)).err().map(|status| status.message);
    assert_eq!(refused.as_deref(), Some(format!("unable to load model 'm', {text}").as_str()));
}

#[test]
fn a_configuration_that_does_not_fit_is_refused() {
    check_refused("", "backend 'scale' needs one input and one output, configuration has 0 inputs and 0 outputs");
    check_refused(&SIGNATURE.replace("FP32", "INT8"), "tensor 'X' must be TYPE_FP32 for backend 'scale'");
    let odd = format!("{SIGNATURE} parameters {{ key: \"factor\" value {{ string_value: \"much\" }} }}");
    check_refused(&odd, "parameter 'factor' is 'much', not a finite number");
}
