//! How are inputs read from a folder with a file for each?

use std::path::Path;

use nerite_client::{DataType, Tensor};

use super::{Content, Step, row_shape};
use crate::model::Model;
use crate::options::Options;

/// One row: raw numbers, or strings in lines.
pub(super) fn step(model: &Model, options: &Options, folder: &Path) -> Result<Step, String> {
    let mut tensors = Vec::new();
    for spec in &model.inputs {
        let path = folder.join(&spec.name);
        if spec.is_optional && !path.exists() {
            continue;
        }
        let fault = |reason: String| format!("--input-data {}: {reason}", path.display());
        let shape = row_shape(spec, options)?;
        let bytes = std::fs::read(&path).map_err(|error| fault(error.to_string()))?;
        let bytes = match spec.datatype {
            DataType::Bytes => {
                let text = String::from_utf8(bytes).map_err(|error| fault(error.to_string()))?;
                let lines: Vec<&str> = text.lines().collect();
                let tensor = Tensor::from_strings(&spec.name, &shape, &lines);
                tensor.map_err(|error| fault(error.to_string()))?.bytes().clone()
            }
            datatype => {
                let tensor = Tensor::from_bytes(&spec.name, datatype, &shape, bytes);
                tensor.map_err(|error| fault(error.to_string()))?.bytes().clone()
            }
        };
        tensors.push(Content { name: spec.name.clone(), datatype: spec.datatype, shape, bytes });
    }
    Ok(Step { tensors, parameters: Vec::new() })
}
