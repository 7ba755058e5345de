//! How does the engine load a graph, if its optimiser fails at it?
//!
//! The optimiser fails or panics at some graphs that the engine runs well without it. One cause is known: shape inference merges equal constants into
//! one value, and if several outputs are that value, the optimiser refuses the graph. So the second attempt optimises without shape inference, and
//! the last one does not optimise.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use nerite_request::Status;
use rten::{LoadError, LoadErrorKind, Model, ModelOptions, ShapeInferenceMode};

use crate::weights;

/// Whether to optimise, and with which shape inference, in the order of the attempts.
const ATTEMPTS: [(bool, ShapeInferenceMode); 3] =
    [(true, ShapeInferenceMode::On), (true, ShapeInferenceMode::Off), (false, ShapeInferenceMode::Off)];

/// The engine, with what all pieces of a graph share.
pub struct Engine {
    options: ModelOptions,
    is_optimised: bool,
}

/// Why a graph was not loaded.
#[derive(Debug)]
pub enum Fault {
    /// Its bytes cannot be read.
    Bytes(Status),
    /// The engine refused it.
    Refused(LoadError),
    /// The engine panicked.
    Panicked,
}

impl Engine {
    /// An engine that optimises its graphs or not. `weights` are those that the graphs refer to ([`weights::take`]).
    pub fn new(is_optimised: bool, weights: Vec<u8>) -> Engine {
        let mut options = ModelOptions::with_all_ops();
        options.external_data(weights::FILE, weights);
        Engine { options, is_optimised }
    }

    /// Loads the bytes that `give` returns, or the file if it returns none. The argument of `give` says whether this is the last attempt. Returns the
    /// index of the attempt as well.
    pub fn load(
        &self,
        path: &Path,
        give: &mut dyn FnMut(bool) -> Result<Option<Vec<u8>>, Status>,
    ) -> Result<(Model, usize), Fault> {
        let mut first_error = None;
        for (at, (optimises, inference)) in ATTEMPTS.into_iter().enumerate() {
            if optimises && !self.is_optimised {
                continue;
            }
            let bytes = give(at + 1 == ATTEMPTS.len()).map_err(Fault::Bytes)?;
            // A clone of the options shares the weights.
            let mut options = self.options.clone();
            options.enable_optimization(optimises).shape_inference(inference);
            let load = || match bytes {
                Some(bytes) => options.load(bytes),
                None => options.load_file(path),
            };
            match catch_unwind(AssertUnwindSafe(load)) {
                Ok(Ok(model)) => return Ok((model, at)),
                Ok(Err(error)) if error.kind() != LoadErrorKind::OptimizeError => return Err(Fault::Refused(error)),
                Ok(Err(error)) => first_error = first_error.or(Some(error)),
                Err(_) => {}
            }
        }
        Err(first_error.map_or(Fault::Panicked, Fault::Refused))
    }
}

#[cfg(test)]
mod tests {
    use rten_onnx::onnx::{DataType as Onnx, GraphProto, ModelProto, NodeProto, OperatorSetIdProto};
    use rten_onnx::onnx::{TensorProto, ValueInfoProto};

    use super::*;

    /// A graph that gives each of these constants as a value.
    fn bytes(constants: &[(&str, i64)]) -> Vec<u8> {
        let value = |name: &str| format!("{name}_value");
        let graph = GraphProto {
            node: constants
                .iter()
                .map(|(name, _)| NodeProto {
                    op_type: Some("Identity".into()),
                    name: Some(value(name)),
                    input: vec![(*name).into()],
                    output: vec![value(name)],
                    ..NodeProto::default()
                })
                .collect(),
            initializer: constants
                .iter()
                .map(|(name, number)| TensorProto {
                    name: Some((*name).into()),
                    data_type: Some(Onnx::INT64),
                    int64_data: vec![*number],
                    ..TensorProto::default()
                })
                .collect(),
            output: constants
                .iter()
                .map(|(name, _)| ValueInfoProto { name: Some(value(name)), r#type: None })
                .collect(),
            ..GraphProto::default()
        };
        let opset_import = vec![OperatorSetIdProto { version: Some(17), ..OperatorSetIdProto::default() }];
        let model = ModelProto { ir_version: Some(8), graph: Some(graph), opset_import, ..ModelProto::default() };
        model.write_buf().expect("it is small")
    }

    #[track_caller]
    fn check(is_optimised: bool, constants: &[(&str, i64)], expect: usize) {
        let engine = Engine::new(is_optimised, Vec::new());
        let loaded = engine.load(Path::new("model.onnx"), &mut |_| Ok(Some(bytes(constants))));
        assert_eq!(loaded.map(|(_, attempt)| attempt).map_err(|fault| format!("{fault:?}")), Ok(expect));
    }

    #[test]
    fn a_graph_is_optimised_even_if_two_of_its_outputs_are_equal_constants() {
        check(true, &[("two", 2), ("three", 3)], 0);
        check(true, &[("two", 2), ("zwei", 2)], 1);
        check(false, &[("two", 2), ("three", 3)], 2);
    }
}
