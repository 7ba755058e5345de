//! Do the outputs that a model makes agree with its configuration?
//!
//! Clients get such outputs as they are, as from Triton. The first contradiction of a model version is logged, and kept for the index.

use std::sync::OnceLock;

use nerite_config::{ModelConfig, TensorSpec};
use nerite_request::Output;
use nerite_tensor::{DataType, show_shape};

/// The outputs that a configuration declares, and the first one that contradicted it.
#[derive(Debug, Default)]
pub struct DeclaredOutputs {
    outputs: Vec<Declared>,
    contradiction: OnceLock<String>,
}

/// One output, as the model itself should make it.
#[derive(Debug)]
struct Declared {
    /// `None` if the configuration sets none.
    datatype: Option<DataType>,
    /// With the batch dimension; -1 means any size. `None` for any shape.
    dims: Option<Vec<i64>>,
}

impl DeclaredOutputs {
    /// The outputs of this configuration.
    pub fn of(config: &ModelConfig) -> DeclaredOutputs {
        // The server divides a scattered output by the shapes of the inputs.
        let is_scattered =
            |name: &str| config.batch_output.iter().flat_map(|one| &one.target_name).any(|one| one == name);
        let batch = config.batches().then_some(-1);
        let dims = |spec: &TensorSpec| batch.into_iter().chain(spec.model_dims().iter().copied()).collect();
        let declared = |spec: TensorSpec| Declared {
            datatype: spec.data_type,
            dims: (!is_scattered(&spec.name)).then(|| dims(&spec)),
        };
        DeclaredOutputs {
            outputs: config.outputs().into_iter().map(declared).collect(),
            contradiction: OnceLock::new(),
        }
    }

    /// The first contradiction, as a sentence about the output.
    pub fn contradiction(&self) -> Option<&str> {
        self.contradiction.get().map(String::as_str)
    }

    /// Compares the outputs of a response. After the first contradiction nothing is compared any more.
    pub(crate) fn check(&self, model: &str, outputs: &[Output]) {
        if self.contradiction.get().is_some() {
            return;
        }
        if let Some(found) = outputs.iter().find_map(|output| self.compare(output))
            && self.contradiction.set(found.clone()).is_ok()
        {
            log::warn!("model '{model}': {found}; clients get it as it is");
        }
    }

    /// What is wrong with this output. Outputs that the server added are not declared.
    fn compare(&self, output: &Output) -> Option<String> {
        let Declared { datatype, dims } = self.outputs.get(output.index)?;
        let (what, made, declared) = match (datatype, dims) {
            (Some(datatype), _) if *datatype != output.datatype => {
                ("datatype", output.datatype.to_string(), datatype.to_string())
            }
            (_, Some(dims)) if !fits(&output.shape, dims) => ("shape", show_shape(&output.shape), show_shape(dims)),
            _ => return None,
        };
        Some(format!("output '{}' has {what} {made}, where its configuration says {declared}", output.name))
    }
}

/// Whether an output may have this shape. A scalar agrees with dimensions of 1 as well, as in an ONNX model.
fn fits(shape: &[i64], dims: &[i64]) -> bool {
    let is_scalar = shape.is_empty() && dims.iter().all(|dim| *dim == 1);
    is_scalar || shape.len() == dims.len() && shape.iter().zip(dims).all(|(have, want)| *want == -1 || have == want)
}

#[cfg(test)]
mod tests {
    use nerite_memory::Buffer;
    use nerite_tensor::Shape;

    use super::*;

    /// An output of this datatype and shape contradicts the configuration in this way.
    #[track_caller]
    fn check(config: &str, datatype: DataType, made: &[i64], expected: Option<&str>) {
        let config = nerite_config::parse_text("", config.as_bytes()).expect("a configuration");
        let declared = DeclaredOutputs::of(&config);
        let shape = Shape::from_slice(made);
        let output = Output { index: 0, name: "Y".into(), datatype, shape, data: Buffer::empty(), placed: false };
        declared.check("m", &[Output { index: 1, ..output.clone() }, output]);
        assert_eq!(declared.contradiction(), expected);
    }

    #[test]
    fn datatypes_and_shapes_are_compared() {
        let output = |rest: &str| format!("output {{ name: 'Y' data_type: TYPE_FP32 {rest} }}");
        let batching = |rest: &str| format!("max_batch_size: 8 {}", output(rest));
        let open = output("dims: [ 2, -1 ]");
        let wrong = |what: &str| Some(format!("output 'Y' has {what}"));
        let refused = |config: &str, datatype, made: &[i64], what: &str| {
            check(config, datatype, made, wrong(what).as_deref());
        };
        check(&open, DataType::Fp32, &[2, 7], None);
        refused(&open, DataType::Fp64, &[2, 7], "datatype FP64, where its configuration says FP32");
        refused(&open, DataType::Fp32, &[3, 7], "shape [3,7], where its configuration says [2,-1]");
        refused(&open, DataType::Fp32, &[2], "shape [2], where its configuration says [2,-1]");
        check(&output("dims: [ 1 ]"), DataType::Fp32, &[], None);
        check(&output("dims: [ 4 ] reshape { shape: [ 2, 2 ] }"), DataType::Fp32, &[2, 2], None);
        check(&batching("dims: [ 4 ]"), DataType::Fp32, &[3, 4], None);
        refused(&batching("dims: [ 4 ]"), DataType::Fp32, &[4], "shape [4], where its configuration says [-1,4]");
        let scattered = "batch_output { target_name: 'Y' kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: 'X' }";
        check(&format!("{} {scattered}", batching("dims: [ 4 ]")), DataType::Fp32, &[9], None);
    }
}
