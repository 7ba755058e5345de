//! Does the smallest runtime pass the suite?

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
