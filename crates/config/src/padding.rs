//! To which sizes are inputs padded, so that requests of unequal shapes run together?
//!
//! This is not one of Triton's settings. An author writes, for each input, the sizes that its variable dimensions are padded to, called buckets:
//!
//! ```text
//! parameters { key: "nerite.pad" value { string_value: "TOKENS: 16,32,64; IMAGE: 224,256 x 224,256" } }
//! parameters { key: "nerite.pad_value" value { string_value: "TOKENS: 1" } }
//! ```
//!
//! Each dimension is padded to the smallest bucket that holds it. A request with a dimension above the largest bucket is not padded. The true lengths reach
//! the model as Triton's batch input `BATCH_ITEM_SHAPE`, and outputs are cut back as Triton's batch output `BATCH_SCATTER_WITH_INPUT_SHAPE` says.

use nerite_tensor::{DataType, Shape};

use crate::error::refuse;
use crate::{ConfigError, ModelConfig, TensorSpec};

/// The parameter that says which inputs are padded to which sizes.
pub const PAD: &str = "nerite.pad";

/// The parameter with the values that fill them; the default is zero.
pub const PAD_VALUE: &str = "nerite.pad_value";

/// The most buckets of one dimension.
pub const BUCKETS_MAX: usize = 64;

/// The backend whose engines compute several requests as one tensor.
const JOINING_BACKEND: &str = "onnxruntime";

/// The inputs that are padded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Padding {
    inputs: Vec<PaddedInput>,
}

/// An input that is padded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PaddedInput {
    name: String,
    /// The padded dimensions, counted without the batch dimension, each with its buckets, ascending.
    dims: Vec<(usize, Vec<i64>)>,
    filler: Vec<u8>,
}

impl Padding {
    /// The padding of a configuration whose inputs are complete.
    pub fn of(config: &ModelConfig) -> Result<Padding, ConfigError> {
        let model = &config.name;
        let Some(text) = config.parameter(PAD) else {
            if config.parameter(PAD_VALUE).is_some() {
                refuse!("parameter '{PAD_VALUE}' of model '{model}' has no effect without '{PAD}'");
            }
            return Ok(Padding::default());
        };
        if config.backend_name() != JOINING_BACKEND {
            refuse!(
                "parameter '{PAD}' of model '{model}' pads what backend '{JOINING_BACKEND}' computes as one tensor; backend '{}' gets requests as a \
                 list: give the input 'allow_ragged_batch: true' instead",
                config.backend_name()
            );
        }
        if config.max_batch_size == 0 {
            refuse!("parameter '{PAD}' of model '{model}' needs a 'max_batch_size' above 0, got 0");
        }
        let specs = config.inputs();
        let mut padding = Padding::default();
        for (name, sizes) in entries(model, PAD, text)? {
            if padding.input(name).is_some() {
                refuse!("parameter '{PAD}' of model '{model}' names input '{name}' twice");
            }
            let spec = spec(model, &specs, PAD, name)?;
            let dims = dims(model, spec, sizes)?;
            padding.inputs.push(PaddedInput { name: name.to_owned(), dims, filler: zero(model, spec)? });
        }
        for (name, value) in entries(model, PAD_VALUE, config.parameter(PAD_VALUE).unwrap_or_default())? {
            let spec = spec(model, &specs, PAD_VALUE, name)?;
            let Some(input) = padding.inputs.iter_mut().find(|input| input.name == name) else {
                refuse!("parameter '{PAD_VALUE}' of model '{model}' names input '{name}', which '{PAD}' does not pad");
            };
            input.filler = filler(model, spec, value)?;
        }
        padding.check_outputs(config)?;
        Ok(padding)
    }

    /// Whether nothing is padded.
    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty()
    }

    /// How this input is padded, if it is.
    pub fn input(&self, name: &str) -> Option<&PaddedInput> {
        self.inputs.iter().find(|input| input.name == name)
    }

    /// Refuses outputs of strings that would be cut back. Strings have no fixed size, so the place of an element in the output cannot be computed.
    fn check_outputs(&self, config: &ModelConfig) -> Result<(), ConfigError> {
        let outputs = config.outputs();
        for batch in &config.batch_output {
            if !batch.source_input.iter().any(|source| self.input(source).is_some()) {
                continue;
            }
            let is_text = |name: &&String| {
                outputs.iter().any(|output| output.name == **name && output.data_type == Some(DataType::Bytes))
            };
            if let Some(name) = batch.target_name.iter().find(is_text) {
                refuse!(
                    "output '{name}' of model '{}' has strings, which cannot be cut back to a padded input's shape",
                    config.name
                );
            }
        }
        Ok(())
    }
}

impl PaddedInput {
    /// The shape, batch dimension first, that the model gets for an input of that shape.
    pub fn padded(&self, shape: &[i64]) -> Shape {
        let mut padded = Shape::from_slice(shape);
        for (dim, buckets) in &self.dims {
            let Some(size) = padded.get_mut(dim + 1) else { return Shape::from_slice(shape) };
            let Some(bucket) = buckets.iter().find(|bucket| **bucket >= *size) else { return Shape::from_slice(shape) };
            *size = *bucket;
        }
        padded
    }

    /// The bytes of the element that fills it.
    pub fn filler(&self) -> &[u8] {
        &self.filler
    }
}

/// The entries `name: value` of a parameter.
fn entries<'a>(model: &str, key: &str, text: &'a str) -> Result<Vec<(&'a str, &'a str)>, ConfigError> {
    let mut entries = Vec::new();
    for entry in text.split(';').map(str::trim).filter(|entry| !entry.is_empty()) {
        // The name may have colons. The text after it has none.
        let Some((name, value)) = entry.rsplit_once(':') else {
            refuse!(
                "parameter '{key}' of model '{model}' has entries '<input>: <value>' between semicolons, got '{entry}'"
            );
        };
        entries.push((name.trim(), value.trim()));
    }
    Ok(entries)
}

fn spec<'a>(model: &str, specs: &'a [TensorSpec], key: &str, name: &str) -> Result<&'a TensorSpec, ConfigError> {
    let Some(spec) = specs.iter().find(|spec| spec.name == name) else {
        let known: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        refuse!("parameter '{key}' of model '{model}' names input '{name}'; its inputs are: {}", known.join(", "));
    };
    if spec.ragged {
        refuse!("input '{name}' of model '{model}' is padded and has 'allow_ragged_batch'; it can have one of them");
    }
    if spec.reshape.is_some() {
        refuse!("input '{name}' of model '{model}' is padded and has 'reshape'; it can have one of them");
    }
    Ok(spec)
}

/// The buckets of each variable dimension: lists of sizes with `x` between them.
fn dims(model: &str, spec: &TensorSpec, text: &str) -> Result<Vec<(usize, Vec<i64>)>, ConfigError> {
    let name = &spec.name;
    let variable: Vec<usize> = (0..spec.dims.len()).filter(|at| spec.dims[*at] < 0).collect();
    let lists: Vec<&str> = text.split('x').collect();
    if lists.len() != variable.len() {
        refuse!(
            "parameter '{PAD}' of model '{model}' has {} lists of sizes for input '{name}', which has {} variable dimensions",
            lists.len(),
            variable.len()
        );
    }
    let mut dims = Vec::new();
    for (dim, list) in variable.into_iter().zip(lists) {
        let buckets: Option<Vec<i64>> = list.split(',').map(|size| size.trim().parse().ok()).collect();
        let ascends =
            |buckets: &Vec<i64>| buckets.first().is_some_and(|size| *size > 0) && buckets.is_sorted_by(|a, b| a < b);
        let Some(buckets) = buckets.filter(ascends) else {
            refuse!(
                "parameter '{PAD}' of model '{model}' wants sizes that ascend from 1 on for input '{name}', got '{}'",
                list.trim()
            );
        };
        if buckets.len() > BUCKETS_MAX {
            refuse!(
                "parameter '{PAD}' of model '{model}' has {} sizes for input '{name}', at most {BUCKETS_MAX}",
                buckets.len()
            );
        }
        dims.push((dim, buckets));
    }
    Ok(dims)
}

fn zero(model: &str, spec: &TensorSpec) -> Result<Vec<u8>, ConfigError> {
    match spec.data_type.and_then(DataType::size) {
        Some(size) => Ok(vec![0; size]),
        None => refuse!(
            "input '{}' of model '{model}' has elements without a size of their own, so it cannot be padded",
            spec.name
        ),
    }
}

/// The bytes of one element of that value.
fn filler(model: &str, spec: &TensorSpec, value: &str) -> Result<Vec<u8>, ConfigError> {
    let zero = zero(model, spec)?;
    let bytes = match spec.data_type {
        Some(DataType::Bool) => value.parse().ok().map(|yes: bool| vec![u8::from(yes)]),
        Some(DataType::Uint8) => value.parse().ok().map(|number: u8| number.to_le_bytes().to_vec()),
        Some(DataType::Uint16) => value.parse().ok().map(|number: u16| number.to_le_bytes().to_vec()),
        Some(DataType::Uint32) => value.parse().ok().map(|number: u32| number.to_le_bytes().to_vec()),
        Some(DataType::Uint64) => value.parse().ok().map(|number: u64| number.to_le_bytes().to_vec()),
        Some(DataType::Int8) => value.parse().ok().map(|number: i8| number.to_le_bytes().to_vec()),
        Some(DataType::Int16) => value.parse().ok().map(|number: i16| number.to_le_bytes().to_vec()),
        Some(DataType::Int32) => value.parse().ok().map(|number: i32| number.to_le_bytes().to_vec()),
        Some(DataType::Int64) => value.parse().ok().map(|number: i64| number.to_le_bytes().to_vec()),
        Some(DataType::Fp32) => value.parse().ok().map(|number: f32| number.to_le_bytes().to_vec()),
        Some(DataType::Fp64) => value.parse().ok().map(|number: f64| number.to_le_bytes().to_vec()),
        // Rust has no such numbers yet, and padding mostly needs only zero.
        Some(DataType::Fp16 | DataType::Bf16) => value.parse().ok().filter(|number: &f32| *number == 0.0).map(|_| zero),
        Some(DataType::Bytes) | None => None,
    };
    match bytes {
        Some(bytes) => Ok(bytes),
        None => refuse!(
            "parameter '{PAD_VALUE}' of model '{model}' gives input '{}' the value '{value}', which is none of its datatype {}",
            spec.name,
            spec.data_type.map_or("", DataType::name)
        ),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const INPUTS: &str = "input [ { name: 'T' data_type: TYPE_INT64 dims: -1 }, { name: 'I' data_type: TYPE_FP32 dims: [3, -1, -1] }, \
                          { name: 'S' data_type: TYPE_STRING dims: -1 }, { name: 'R' data_type: TYPE_INT32 dims: -1 allow_ragged_batch: true } ]";

    fn read(pad: &str, more: &str) -> Result<Padding, ConfigError> {
        let parameter = format!("parameters {{ key: 'nerite.pad' value {{ string_value: '{pad}' }} }}");
        let usual = ["backend: 'onnxruntime'", "max_batch_size: 8"];
        let usual = usual.into_iter().filter(|field| field.split(':').next().is_some_and(|name| !more.contains(name)));
        let usual: Vec<&str> = usual.collect();
        let text = format!("name: 'm' {} {INPUTS} {parameter} {more}", usual.join(" "));
        Padding::of(&crate::parse_text("", text.as_bytes()).unwrap())
    }

    #[track_caller]
    fn check(pad: &str, input: &str, shape: &[i64], expect: &[i64]) {
        assert_eq!(&read(pad, "").unwrap().input(input).unwrap().padded(shape)[..], expect, "{pad} {shape:?}");
    }

    #[track_caller]
    fn check_refused(pad: &str, more: &str, expect: &str) {
        let refused = read(pad, more).unwrap_err().to_string();
        assert!(refused.contains(expect), "{refused}");
    }

    #[test]
    fn a_dimension_grows_to_the_smallest_bucket_that_holds_it() {
        check("T: 16,32", "T", &[2, 0], &[2, 16]);
        check("T: 16,32", "T", &[2, 16], &[2, 16]);
        check("T: 16,32", "T", &[2, 17], &[2, 32]);
        check("T: 16,32", "T", &[2, 33], &[2, 33]);
        check("I: 8 x 4,6;", "I", &[1, 3, 5, 5], &[1, 3, 8, 6]);
        // If one dimension is larger than its largest bucket, no dimension is padded.
        check("I: 8 x 4,6", "I", &[1, 3, 5, 7], &[1, 3, 5, 7]);
    }

    #[test]
    fn fillers_have_the_datatype_of_their_input() {
        let value = |text: &str| format!("parameters {{ key: 'nerite.pad_value' value {{ string_value: '{text}' }} }}");
        let filler = |pad: &str, text: &str, input: &str| {
            read(pad, &value(text)).unwrap().input(input).unwrap().filler().to_vec()
        };
        assert_eq!(filler("T: 1", "T: -2", "T"), (-2i64).to_le_bytes());
        assert_eq!(filler("T: 1; I: 1 x 1", "I: 0.5", "I"), 0.5f32.to_le_bytes());
        assert_eq!(filler("T: 1; I: 1 x 1", "I: 0.5", "T"), [0; 8]);
        check_refused("T: 1", &value("T: 0.5"), "gives input 'T' the value '0.5', which is none of its datatype INT64");
        check_refused("T: 1", &value("I: 0.5"), "names input 'I', which 'nerite.pad' does not pad");
    }

    #[test]
    fn what_cannot_be_padded_is_refused_with_the_reason() {
        check_refused("X: 1", "", "names input 'X'; its inputs are: T, I, S, R");
        check_refused("T: 1; T: 2", "", "names input 'T' twice");
        check_refused("T", "", "has entries '<input>: <value>' between semicolons, got 'T'");
        check_refused("T: 2,1", "", "sizes that ascend from 1 on for input 'T', got '2,1'");
        check_refused("T: 0,1", "", "sizes that ascend from 1 on");
        check_refused("T: many", "", "got 'many'");
        check_refused("I: 4", "", "has 1 lists of sizes for input 'I', which has 2 variable dimensions");
        check_refused("S: 4", "", "has elements without a size of their own");
        check_refused("R: 4", "", "is padded and has 'allow_ragged_batch'");
        check_refused("T: 4", "max_batch_size: 0", "needs a 'max_batch_size' above 0");
        check_refused("T: 4", "backend: 'python'", "backend 'python' gets requests as a list");
        let sizes: Vec<String> = (1..=BUCKETS_MAX + 1).map(|size| size.to_string()).collect();
        check_refused(&format!("T: {}", sizes.join(",")), "", "has 65 sizes for input 'T', at most 64");
        let texts =
            "output { name: 'O' data_type: TYPE_STRING dims: -1 } batch_output { target_name: 'O' source_input: 'T' }";
        check_refused("T: 4", texts, "output 'O' of model 'm' has strings");
    }
}
