//! Does the smallest runtime pass the suite?

#![allow(clippy::unwrap_used)]

use nerite_config::{ModelConfig, config_data_type, proto};
use nerite_memory::Buffer;
use nerite_tensor::{DataType, Shape};

use super::*;
use crate::identity::Identity;

fn tensor(name: &str, datatype: DataType, shape: &[i64], data: impl Into<Buffer>) -> Tensor {
    Tensor { name: name.into(), datatype, shape: Shape::from_slice(shape), data: data.into() }
}

fn case(numbers: &[i32], text: &[u8]) -> Case {
    let of = |number: &str, string: &str| {
        let whole = Buffer::from_numbers(numbers.to_vec());
        vec![
            tensor(number, DataType::Int32, &[numbers.len() as i64], whole),
            tensor(string, DataType::Bytes, &[1], text.to_vec()),
        ]
    };
    Case { inputs: of("INPUT0", "INPUT1"), outputs: of("OUTPUT0", "OUTPUT1") }
}

#[test]
fn identity_keeps_the_contract() {
    let types = [DataType::Int32, DataType::Bytes].map(|datatype| config_data_type(datatype) as i32);
    let config = ModelConfig {
        name: "identity".into(),
        backend: "identity".into(),
        input: types
            .iter()
            .enumerate()
            .map(|(i, t)| proto::ModelInput {
                name: format!("INPUT{i}"),
                data_type: *t,
                dims: vec![-1],
                ..Default::default()
            })
            .collect(),
        output: types
            .iter()
            .enumerate()
            .map(|(i, t)| proto::ModelOutput {
                name: format!("OUTPUT{i}"),
                data_type: *t,
                dims: vec![-1],
                ..Default::default()
            })
            .collect(),
        ..ModelConfig::default()
    };
    let fixture = Fixture {
        context: context(std::path::Path::new("."), config),
        cases: vec![case(&[1, 2, 3], b"\x02\0\0\0a\0"), case(&[4], b"\0\0\0\0")],
        faulty: None,
    };
    check_runtime(&Identity, &fixture);
}

#[test]
fn an_output_of_identity_without_its_optional_input_is_zeros() {
    let text = "backend: 'identity' max_batch_size: 4
        input [ { name: 'INPUT0' data_type: TYPE_INT32 dims: 1 },
                { name: 'INPUT1' data_type: TYPE_FP32 dims: [ 2, -1 ] optional: true },
                { name: 'INPUT2' data_type: TYPE_STRING dims: 1 optional: true } ]
        output [ { name: 'OUTPUT0' data_type: TYPE_INT32 dims: 1 }, { name: 'OUTPUT1' data_type: TYPE_FP32 dims: [ 2, -1 ] },
                 { name: 'OUTPUT2' data_type: TYPE_STRING dims: 1 } ]";
    let config = nerite_config::parse_text("config.pbtxt", text.as_bytes()).unwrap();
    let model = Identity.load(&context(std::path::Path::new("."), config)).unwrap();
    let mut instance = model.instance(&InstanceSpec::default()).unwrap();
    let wanted = ["OUTPUT0", "OUTPUT1", "OUTPUT2"].map(|name| Wanted { name: name.into(), slot: None });
    let given = vec![tensor("INPUT0", DataType::Int32, &[1, 1], Buffer::from_numbers(vec![7]))];
    let answer = infer(given, wanted.into(), |batch| instance.run(batch)).unwrap();
    let found =
        answer.outputs.iter().map(|output| (output.shape.to_vec(), output.data.private_bytes().unwrap().to_vec()));
    let expected = [(vec![1, 1], vec![7, 0, 0, 0]), (vec![1, 2, 1], vec![0; 8]), (vec![1, 1], vec![0; 4])];
    assert_eq!(found.collect::<Vec<_>>(), expected);
}

#[test]
fn a_load_of_identity_that_takes_long_can_be_ended() {
    let text = "backend: 'identity' parameters { key: 'creation_delay_sec' value { string_value: '1000000' } }";
    let context = context(std::path::Path::new("."), nerite_config::parse_text("c", text.as_bytes()).unwrap());
    context.stop.stop("the model is unloaded");
    assert_eq!(Identity.load(&context).err().unwrap().message, "the model is unloaded");
}
