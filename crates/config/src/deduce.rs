//! Which backend runs a model whose author did not say?

use crate::error::refuse;
use crate::{ConfigError, ModelConfig};

/// A file or directory in the first version directory of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name, without the path.
    pub name: String,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// What must lie under a file name for it to tell the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lies {
    File,
    Directory,
    Either,
}

/// One way to recognise a backend, and what it is then called.
struct Known {
    backend: &'static str,
    /// Empty for a backend that has no platform.
    platform: &'static str,
    filename: &'static str,
    lies: Lies,
}

const fn known(backend: &'static str, platform: &'static str, filename: &'static str, lies: Lies) -> Known {
    Known { backend, platform, filename, lies }
}

/// In the order in which they are tried.
const KNOWN: [Known; 9] = [
    known("tensorflow", "tensorflow_savedmodel", "model.savedmodel", Lies::Directory),
    known("tensorflow", "tensorflow_graphdef", "model.graphdef", Lies::File),
    known("tensorrt", "tensorrt_plan", "model.plan", Lies::File),
    // A graph with its weights beside it is a directory.
    known("onnxruntime", "onnxruntime_onnx", "model.onnx", Lies::Either),
    known("openvino", "", "model.xml", Lies::Either),
    known("pytorch", "pytorch_libtorch", "model.pt", Lies::File),
    known("pytorch", "torch_aoti", "model.pt2", Lies::File),
    known("python", "", "model.py", Lies::Either),
    known("", "ensemble", "", Lies::Either),
];

/// Fills backend, platform and default_model_filename, as far as they are empty,
/// from each other and from what lies in the lexically first sub-directory of the
/// model's directory (`None`: there is none). With nothing else to go by, a model
/// called `x.<backend>` is run by `<backend>`.
pub fn deduce_backend(
    mut config: ModelConfig,
    model: &str,
    entries: Option<&[Entry]>,
) -> Result<ModelConfig, ConfigError> {
    if config.name.is_empty() {
        model.clone_into(&mut config.name);
    }
    if let Some(known) = KNOWN.iter().find(|known| tells(known, &config, entries)) {
        fill(&mut config.backend, known.backend);
        fill(&mut config.platform, known.platform);
        fill(&mut config.default_model_filename, known.filename);
    } else if says_nothing(&config) {
        let Some((_, backend)) = model.split_once('.') else {
            refuse!(
                "Invalid model name: Could not determine backend for model '{model}' with no \
                 backend in model configuration. Expected model name of the form \
                 'model.<backend_name>'."
            );
        };
        backend.clone_into(&mut config.backend);
        config.default_model_filename = format!("model.{backend}");
    }
    Ok(config)
}

/// Whether the configuration, or else the directory, speaks of this backend.
fn tells(known: &Known, config: &ModelConfig, entries: Option<&[Entry]>) -> bool {
    if !config.backend.is_empty() && config.backend != known.backend {
        return false;
    }
    if !config.platform.is_empty() {
        return config.platform == known.platform
            // A backend without platforms does not mind what its author wrote there.
            || (known.platform.is_empty() && config.backend == known.backend);
    }
    if !config.default_model_filename.is_empty() {
        let named = config.default_model_filename == known.filename;
        // A file of another name is still the backend's, as its first platform.
        return named || (config.backend == known.backend && is_first(known) && !any_named(config));
    }
    let lies = entries.unwrap_or_default().iter().any(|entry| {
        entry.name == known.filename
            && match known.lies {
                Lies::File => !entry.is_dir,
                Lies::Directory => entry.is_dir,
                Lies::Either => true,
            }
    });
    lies || (config.backend == known.backend && is_first(known) && !any_lies(config, entries))
}

/// Whether this is the platform a backend has when nothing tells its platforms
/// apart. TensorFlow has none: there the author must say it.
fn is_first(known: &Known) -> bool {
    !matches!(known.platform, "tensorflow_savedmodel" | "tensorflow_graphdef" | "torch_aoti" | "ensemble")
}

/// Whether the file name given is that of one of the backend's platforms.
fn any_named(config: &ModelConfig) -> bool {
    KNOWN.iter().any(|known| known.backend == config.backend && known.filename == config.default_model_filename)
}

/// Whether a file of one of the backend's platforms lies there.
fn any_lies(config: &ModelConfig, entries: Option<&[Entry]>) -> bool {
    let entries = entries.unwrap_or_default();
    KNOWN
        .iter()
        .any(|known| known.backend == config.backend && entries.iter().any(|entry| entry.name == known.filename))
}

fn says_nothing(config: &ModelConfig) -> bool {
    config.backend.is_empty() && config.platform.is_empty() && config.default_model_filename.is_empty()
}

fn fill(field: &mut String, value: &str) {
    if field.is_empty() {
        value.clone_into(field);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const NOTHING: [&str; 3] = ["", "", ""];

    fn config([backend, platform, filename]: [&str; 3]) -> ModelConfig {
        ModelConfig {
            backend: backend.to_owned(),
            platform: platform.to_owned(),
            default_model_filename: filename.to_owned(),
            ..Default::default()
        }
    }

    fn entries(names: &[&str]) -> Vec<Entry> {
        names
            .iter()
            .map(|name| Entry { name: name.trim_end_matches('/').to_owned(), is_dir: name.ends_with('/') })
            .collect()
    }

    /// `[backend, platform, filename]`; a name that ends in `/` is a directory.
    #[track_caller]
    fn check(given: [&str; 3], files: &[&str], expect: [&str; 3]) {
        let found = deduce_backend(config(given), "m", Some(&entries(files))).unwrap();
        assert_eq!(
            [&found.backend[..], &found.platform, &found.default_model_filename],
            expect,
            "from {given:?} and {files:?}"
        );
        assert_eq!(found.name, "m");
    }

    #[test]
    fn files_tell_the_backend() {
        let saved = ["tensorflow", "tensorflow_savedmodel", "model.savedmodel"];
        check(NOTHING, &["model.savedmodel/"], saved);
        let graph = ["tensorflow", "tensorflow_graphdef", "model.graphdef"];
        check(NOTHING, &["model.graphdef"], graph);
        check(NOTHING, &["model.plan"], ["tensorrt", "tensorrt_plan", "model.plan"]);
        let onnx = ["onnxruntime", "onnxruntime_onnx", "model.onnx"];
        check(NOTHING, &["model.onnx"], onnx);
        check(NOTHING, &["model.onnx/"], onnx);
        check(NOTHING, &["model.xml", "model.bin"], ["openvino", "", "model.xml"]);
        check(NOTHING, &["model.pt"], ["pytorch", "pytorch_libtorch", "model.pt"]);
        check(NOTHING, &["model.pt2"], ["pytorch", "torch_aoti", "model.pt2"]);
        check(NOTHING, &["model.py"], ["python", "", "model.py"]);
    }

    #[test]
    fn the_first_of_several_files_in_the_order_of_the_table_wins() {
        check(NOTHING, &["model.onnx", "model.py"], ["onnxruntime", "onnxruntime_onnx", "model.onnx"]);
        check(NOTHING, &["model.plan", "model.onnx"], ["tensorrt", "tensorrt_plan", "model.plan"]);
    }

    #[test]
    fn a_platform_or_a_file_name_alone_tells_it_too() {
        check(["", "onnxruntime_onnx", ""], &[], ["onnxruntime", "onnxruntime_onnx", "model.onnx"]);
        check(["", "", "model.py"], &[], ["python", "", "model.py"]);
        check(["", "ensemble", ""], &[], ["", "ensemble", ""]);
    }

    #[test]
    fn what_the_author_says_is_kept() {
        check(["python", "", ""], &["model.onnx"], ["python", "", "model.py"]);
        check(["python", "x", ""], &[], ["python", "x", "model.py"]);
        check(["onnxruntime", "", "net.onnx"], &["net.onnx"], ["onnxruntime", "onnxruntime_onnx", "net.onnx"]);
        check(["identity", "", ""], &["model.onnx"], ["identity", "", ""]);
        check(["identity", "p", "f"], &[], ["identity", "p", "f"]);
        check(["pytorch", "", ""], &[], ["pytorch", "pytorch_libtorch", "model.pt"]);
        check(["pytorch", "", ""], &["model.pt2"], ["pytorch", "torch_aoti", "model.pt2"]);
        check(["", "", "weights.bin"], &["model.py"], ["", "", "weights.bin"]);
        check(["", "nonsense", ""], &["model.py"], ["", "nonsense", ""]);
    }

    #[test]
    fn a_model_named_after_its_backend_needs_nothing_else() {
        let found = deduce_backend(config(NOTHING), "echo.identity", None).unwrap();
        assert_eq!(found.backend, "identity");
        assert_eq!(found.default_model_filename, "model.identity");
        let found = deduce_backend(config(NOTHING), "a.b.c", Some(&[])).unwrap();
        assert_eq!(found.backend, "b.c");
    }

    #[test]
    fn with_nothing_to_go_by_it_is_refused() {
        let refused = deduce_backend(config(NOTHING), "echo", None).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "Invalid model name: Could not determine backend for model 'echo' with no backend in \
             model configuration. Expected model name of the form 'model.<backend_name>'."
        );
    }
}
