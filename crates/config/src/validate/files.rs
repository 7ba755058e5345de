//! Does the model's directory hold what the configuration speaks of?

use std::path::{Component, Path};

use crate::ConfigError;

/// Refuses a label file that is not in the model's directory. Links are not
/// followed here: whoever opens the file must open it beneath that directory.
pub fn check_label_path(path: &str, output: &str, model: &str) -> Result<(), ConfigError> {
    let mut depth = 0_usize;
    for component in Path::new(path).components() {
        let inside = match component {
            Component::CurDir => Some(depth),
            Component::Normal(_) => Some(depth + 1),
            Component::ParentDir => depth.checked_sub(1),
            Component::RootDir | Component::Prefix(_) => None,
        };
        let Some(inside) = inside else {
            return Err(ConfigError::Unsupported {
                text: format!(
                    "label file path '{path}' for output '{output}' in model '{model}' is outside \
                     model directory"
                ),
            });
        };
        depth = inside;
    }
    Ok(())
}

/// The failure of a load that has no version to load.
pub fn no_version_to_load(model: &str) -> ConfigError {
    ConfigError::invalid(format!("at least one version must be available under the version policy of model '{model}'"))
}
