//! How are random inputs, and zeros, made?

use nerite_client::{DataType, Tensor};

use super::{Content, Step, row_shape};
use crate::model::Model;
use crate::options::{InputData, Options};
use crate::random::Random;

/// Above 0 and below this: integers that are small enough to be indexes of most models.
const INTEGERS_END: u64 = 100;

/// One row of each input that is not optional.
pub(super) fn step(model: &Model, options: &Options) -> Result<Step, String> {
    let mut random = Random::new(0);
    let wanted = model.inputs.iter().filter(|input| !input.is_optional);
    let tensors = wanted.map(|spec| {
        let shape = row_shape(spec, options)?;
        let elements = shape.iter().product::<i64>() as usize;
        let is_zero = options.tensors.data == InputData::Zero;
        let bytes = match spec.datatype {
            DataType::Bytes => strings(&shape, elements, options, &mut random)?,
            datatype if is_zero => vec![0; elements * datatype.size().unwrap_or_default()],
            datatype => numbers(datatype, elements, &mut random),
        };
        Ok(Content { name: spec.name.clone(), datatype: spec.datatype, shape, bytes: bytes.into() })
    });
    Ok(Step { tensors: tensors.collect::<Result<_, String>>()?, parameters: Vec::new() })
}

fn strings(shape: &[i64], elements: usize, options: &Options, random: &mut Random) -> Result<Vec<u8>, String> {
    let one = |random: &mut Random| match (&options.tensors.string, &options.tensors.data) {
        (Some(text), _) => text.clone(),
        (None, InputData::Zero) => String::new(),
        _ => (0..options.tensors.string_len).map(|_| char::from(b'a' + random.below(26) as u8)).collect(),
    };
    let all: Vec<String> = (0..elements).map(|_| one(random)).collect();
    let tensor = Tensor::from_strings("", shape, &all).map_err(|error| error.to_string())?;
    Ok(tensor.bytes().to_vec())
}

/// Fractions between 0 and 1, and small integers. Bytes without a meaning could be numbers that make an engine slow, such as NaN.
fn numbers(datatype: DataType, elements: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(elements * datatype.size().unwrap_or_default());
    for _ in 0..elements {
        let integer = random.below(INTEGERS_END);
        match datatype {
            DataType::Fp32 => bytes.extend((random.fraction() as f32).to_le_bytes()),
            DataType::Fp64 => bytes.extend(random.fraction().to_le_bytes()),
            // The upper half of FP32.
            DataType::Bf16 => bytes.extend(&(random.fraction() as f32).to_le_bytes()[2..]),
            // Exponent -1 and a random fraction: between 0.5 and 1.
            DataType::Fp16 => bytes.extend((0x3800 | random.below(0x400) as u16).to_le_bytes()),
            DataType::Bool => bytes.push((integer % 2) as u8),
            _ => bytes.extend(&integer.to_le_bytes()[..datatype.size().unwrap_or_default()]),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fill_their_tensor_and_are_sound() {
        let mut random = Random::new(1);
        let bytes = numbers(DataType::Fp32, 100, &mut random);
        let values = bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]));
        assert!(values.clone().all(|value| (0.0..1.0).contains(&value)));
        assert!(values.clone().any(|value| value > 0.5) && values.clone().any(|value| value < 0.5));
        assert_eq!(numbers(DataType::Int64, 3, &mut random).len(), 24);
        assert!(numbers(DataType::Bool, 50, &mut random).iter().all(|value| *value < 2));
    }
}
