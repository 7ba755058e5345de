//! Does the model's directory contain the configured files?

use std::path::{Component, Path};

use crate::{ConfigError, ModelConfig};

/// Refuses file names that lead out of their directory. For a model's file, this is the directory of its version. For an operator library, it is the
/// directory of the model. Links are followed: a user who may create them in the repository may link anywhere.
pub fn check_file_names(config: &ModelConfig) -> Result<(), ConfigError> {
    let refuse = |field: &str, path: &str, directory: &str| {
        Err(ConfigError::invalid(format!(
            "{field} '{path}' of model '{}' leads out of the {directory}'s directory; name a file inside it",
            config.name
        )))
    };
    if !is_inside(&config.default_model_filename) {
        return refuse("default_model_filename", &config.default_model_filename, "version");
    }
    if let Some(path) = config.cc_model_filenames.values().find(|path| !is_inside(path)) {
        return refuse("cc_model_filenames", path, "version");
    }
    let libraries = config.model_operations.iter().flat_map(|operations| &operations.op_library_filename);
    match libraries.into_iter().find(|path| !is_inside(path)) {
        Some(path) => refuse("op_library_filename", path, "model"),
        None => Ok(()),
    }
}

/// Refuses a label file that is not in the model's directory. Links are not followed here: the caller must open the file beneath that directory.
pub fn check_label_path(path: &str, output: &str, model: &str) -> Result<(), ConfigError> {
    if is_inside(path) {
        return Ok(());
    }
    Err(ConfigError::Unsupported {
        text: format!("label file path '{path}' for output '{output}' in model '{model}' is outside model directory"),
    })
}

/// Whether a path stays inside the directory it is relative to.
fn is_inside(path: &str) -> bool {
    let mut depth = 0_usize;
    for component in Path::new(path).components() {
        let inside = match component {
            Component::CurDir => Some(depth),
            Component::Normal(_) => Some(depth + 1),
            Component::ParentDir => depth.checked_sub(1),
            Component::RootDir | Component::Prefix(_) => None,
        };
        let Some(inside) = inside else { return false };
        depth = inside;
    }
    true
}

/// The error of a load without a version to load.
pub fn no_version_to_load(model: &str) -> ConfigError {
    ConfigError::invalid(format!(
        "at least one version must be available under the version policy of model '{model}'; a version is a directory such as '{model}/1'"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, refusal: Option<&str>) {
        let config = ModelConfig { name: "m".into(), default_model_filename: path.into(), ..ModelConfig::default() };
        let refused = check_file_names(&config).err().map(|refused| refused.to_string());
        assert_eq!(refused.as_deref(), refusal);
    }

    #[test]
    fn a_models_file_is_in_its_versions_directory() {
        for path in ["", "model.onnx", "sub/model.onnx", "./model.onnx", "sub/../model.onnx", "..model"] {
            check(path, None);
        }
        for path in ["..", "../1/model.onnx", "sub/../../model.onnx", "/etc/passwd", "a/../../a"] {
            let text = "leads out of the version's directory; name a file inside it";
            check(path, Some(&format!("default_model_filename '{path}' of model 'm' {text}")));
        }
    }

    #[test]
    fn other_files_must_be_inside_their_directory_too() {
        let mut config = ModelConfig { name: "m".into(), ..ModelConfig::default() };
        config.cc_model_filenames.insert("8.0".into(), "../x".into());
        let refused = check_file_names(&config).map_err(|refused| refused.to_string());
        let text = "cc_model_filenames '../x' of model 'm' leads out of the version's directory; name a file inside it";
        assert_eq!(refused, Err(text.to_owned()));
        config.cc_model_filenames.clear();
        config.model_operations.get_or_insert_default().op_library_filename.push("/tmp/x.so".into());
        let refused = check_file_names(&config).map_err(|refused| refused.to_string());
        let text =
            "op_library_filename '/tmp/x.so' of model 'm' leads out of the model's directory; name a file inside it";
        assert_eq!(refused, Err(text.to_owned()));
    }
}
