//! From which size of a tensor on is shared memory faster?

use crate::caller::Caller;
use crate::model::{Model, TensorSpec};
use crate::options::{Memory, Options, Protocol};
use crate::profile::{Observer, measure_first};
use crate::results::{SizePoint, SizeSweep};

/// Sizes in bytes, if the user names none.
const SIZES: [usize; 10] = [64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];

/// Measures the model with tensors of each size, in the message and in shared memory in turn.
pub(crate) fn sizes(options: &Options, caller: &Caller, observer: &mut dyn Observer) -> Result<SizeSweep, String> {
    let model = Model::read(caller, &options.model, &options.version)?;
    let sizes = if options.sizes.is_empty() { &SIZES[..] } else { &options.sizes };
    let shared = match (options.memory, options.protocol) {
        (Memory::Inline, Protocol::Session) => Memory::Lease,
        (Memory::Inline, _) => Memory::System,
        (given, _) => given,
    };
    let mut points = Vec::with_capacity(sizes.len());
    for &bytes in sizes {
        if observer.is_interrupted() {
            break;
        }
        let sized = of_size(options, &model, bytes)?;
        let mut measure = |memory| measure_first(&Options { memory, ..sized.clone() }, observer);
        let (inline, shared) = (measure(Memory::Inline)?, measure(shared)?);
        points.push(SizePoint { bytes: bytes as u64, inline, shared });
    }
    Ok(SizeSweep { protocol: options.protocol, points })
}

/// The options for tensors of this many bytes: the last variable dimension of each input makes up the size, and the others are 1.
fn of_size(options: &Options, model: &Model, bytes: usize) -> Result<Options, String> {
    let variable: Vec<&TensorSpec> = model.inputs.iter().filter(|input| input.shape.contains(&-1)).collect();
    if variable.is_empty() {
        return Err(format!("--sweep sizes needs an input of variable shape, and model '{}' has none", model.name));
    }
    let mut sized = Options { output_bytes: bytes.max(options.output_bytes), ..options.clone() };
    for input in variable {
        let element = input.datatype.size().ok_or_else(|| {
            format!("--sweep sizes needs inputs of numbers, and '{}' is {}", input.name, input.datatype.name())
        })?;
        let fixed: usize =
            input.shape.iter().filter(|dimension| **dimension >= 0).map(|dimension| *dimension as usize).product();
        let elements = bytes / (element * fixed).max(1);
        if elements == 0 || elements * element * fixed != bytes {
            let unit = element * fixed;
            return Err(format!("--sizes: input '{}' has {unit} bytes or a multiple, and not {bytes}", input.name));
        }
        let last = input.shape.iter().rposition(|dimension| *dimension == -1);
        let shape = input.shape.iter().enumerate().map(|(at, dimension)| match dimension {
            -1 if Some(at) == last => elements as i64,
            -1 => 1,
            dimension => *dimension,
        });
        sized.tensors.shapes.retain(|(name, _)| *name != input.name);
        sized.tensors.shapes.push((input.name.clone(), shape.collect()));
    }
    Ok(sized)
}

#[cfg(test)]
mod tests {
    use nerite_client::DataType;

    use super::*;

    #[track_caller]
    fn check(shape: &[i64], bytes: usize, expect: Result<&[i64], &str>) {
        let input = TensorSpec { name: "A".into(), datatype: DataType::Fp32, shape: shape.into(), is_optional: false };
        let model = Model { name: "m".into(), inputs: vec![input], ..Model::default() };
        let sized = of_size(&Options::default(), &model, bytes);
        let found = sized.as_ref().map(|options| options.tensors.shapes[0].1.as_slice()).map_err(String::as_str);
        assert_eq!(found, expect, "{shape:?} {bytes}");
    }

    #[test]
    fn the_last_variable_dimension_makes_up_the_size() {
        check(&[-1], 64, Ok(&[16]));
        check(&[-1, 4, -1], 64, Ok(&[1, 4, 4]));
        check(&[-1, 4], 40, Err("--sizes: input 'A' has 16 bytes or a multiple, and not 40"));
        check(&[4], 16, Err("--sweep sizes needs an input of variable shape, and model 'm' has none"));
    }
}
