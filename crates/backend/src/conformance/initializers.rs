//! May a request leave out an input that has an initializer, and replace it?
//!
//! This is for runtimes of ONNX models. The graphs are `replaceable.onnx` and `replaceable_long.onnx`, which `tests/models/make_engine_models.py`
//! makes.

use std::path::Path;
use std::sync::Arc;

use nerite_memory::{Buffer, Number};
use nerite_request::{Status, Wanted};
use nerite_tensor::{DataType, Shape, Tensor};

use crate::conformance::{context, infer};
use crate::{Instance, InstanceSpec, LoadContext, Runtime};

/// The inputs with floating-point numbers. The other inputs, `a` and `b`, have integers.
const FLOATS: &[&str] = &["x", "w"];

/// Loads `replaceable.onnx` of this folder. `listed` is the configuration's text for inputs besides `x` and `a`.
fn load(runtime: &dyn Runtime, folder: &Path, listed: &str) -> Result<Box<dyn Instance>, Status> {
    let text = format!(
        "name: 'replaceable' backend: 'onnxruntime' default_model_filename: 'replaceable.onnx' \
         input [{{ name: 'x' data_type: TYPE_FP32 dims: -1 }}, {{ name: 'a' data_type: TYPE_INT32 dims: -1 }}] {listed} \
         output [{{ name: 'v' data_type: TYPE_FP32 dims: -1 }}, {{ name: 'q' data_type: TYPE_INT32 dims: -1 }}]"
    );
    instance(runtime, folder, &text)
}

fn instance(runtime: &dyn Runtime, folder: &Path, text: &str) -> Result<Box<dyn Instance>, Status> {
    let config = nerite_config::parse_text("config.pbtxt", text.as_bytes()).expect("a configuration");
    let mut context: LoadContext = context(folder, config);
    folder.clone_into(&mut context.version_dir);
    context.config = Arc::new(runtime.complete(&context)?);
    runtime.load(&context)?.instance(&InstanceSpec::default())
}

fn tensor<T: Number>(name: &str, datatype: DataType, values: &[T]) -> Tensor {
    let shape = Shape::from_slice(&[values.len() as i64]);
    Tensor { name: name.into(), datatype, shape, data: Buffer::from_numbers(values.to_vec()) }
}

/// Checks the answer to a request: `v` = x · w and `q` = a / b, or the error.
#[track_caller]
fn check(instance: &mut dyn Instance, given: &[(&str, &[i32])], expect: Result<(&[f32], &[i32]), &str>) {
    let one = |(name, values): &(&str, &[i32])| {
        let floats: Vec<f32> = values.iter().map(|value| *value as f32).collect();
        if FLOATS.contains(name) {
            tensor(name, DataType::Fp32, &floats)
        } else {
            tensor(name, DataType::Int32, values)
        }
    };
    let inputs: Vec<Tensor> = given.iter().map(one).collect();
    let wanted = ["v", "q"].map(|name| Wanted { name: name.into(), slot: None });
    let answer = infer(inputs, wanted.into(), |batch| instance.run(batch));
    match (answer, expect) {
        (Ok(response), Ok((v, q))) => {
            let expected = [tensor("v", DataType::Fp32, v), tensor("q", DataType::Int32, q)];
            for (output, expected) in response.outputs.iter().zip(&expected) {
                assert_eq!((&output.name, &output.shape), (&expected.name, &expected.shape), "{given:?}");
                assert_eq!(output.data.private_bytes(), expected.data.private_bytes(), "{given:?}");
            }
        }
        (Err(status), Err(why)) => assert!(status.message.contains(why), "{status}"),
        (answer, _) => panic!("{given:?}: {:?}", answer.map(drop)),
    }
}

/// Checks on the graphs of this folder that requests may leave out such inputs, and replace them. If `no_result` is given, a request that divides the
/// smallest integer by -1 must fail with this text.
///
/// # Panics
/// At the first promise that is broken.
pub fn check_initializers(runtime: &dyn Runtime, folder: &Path, no_result: Option<&str>) {
    let both = "input [{ name: 'w' data_type: TYPE_FP32 dims: 1 optional: true }, \
                { name: 'b' data_type: TYPE_INT32 dims: 1 optional: true }]";
    let mut open = load(runtime, folder, both).unwrap_or_else(|why| panic!("the model loads: {why}"));
    let plain: [(&str, &[i32]); 2] = [("x", &[1, 5]), ("a", &[7, -9])];
    let with = |more: &[(&'static str, &'static [i32])]| [&plain[..], more].concat();
    check(&mut *open, &plain, Ok((&[2.0, 10.0], &[2, -3])));
    check(&mut *open, &with(&[("w", &[3])]), Ok((&[3.0, 15.0], &[2, -3])));
    check(&mut *open, &with(&[("b", &[-1])]), Ok((&[2.0, 10.0], &[-7, 9])));
    check(&mut *open, &with(&[("w", &[0]), ("b", &[2])]), Ok((&[0.0, 0.0], &[3, -4])));
    // A value that a request replaced is not replaced for the next request.
    check(&mut *open, &plain, Ok((&[2.0, 10.0], &[2, -3])));
    if let Some(why) = no_result {
        check(&mut *open, &[("x", &[1]), ("a", &[i32::MIN]), ("b", &[-1])], Err(why));
        check(&mut *open, &plain, Ok((&[2.0, 10.0], &[2, -3])));
    }
    let mut closed = load(runtime, folder, "").unwrap_or_else(|why| panic!("the model loads: {why}"));
    check(&mut *closed, &plain, Ok((&[2.0, 10.0], &[2, -3])));
    check(&mut *closed, &with(&[("w", &[3])]), Err("has no input 'w'"));
    let needed = load(runtime, folder, &both.replace("optional: true", "")).err();
    let text = "configuration expects 4 inputs, model provides 2";
    assert!(needed.is_some_and(|why| why.message.contains(text)), "an initializer that a request must give is refused");
}
