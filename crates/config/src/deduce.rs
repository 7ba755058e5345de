//! Which backend runs a model whose configuration does not name one?

use crate::error::refuse;
use crate::{ConfigError, ModelConfig, listed};

/// A file or directory in the first version directory of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name, without the path.
    pub name: String,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// The type that the entry with a known file name must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryType {
    File,
    Directory,
    Either,
}

/// One way to recognise a backend: its name, platform and file name.
struct Known {
    backend: &'static str,
    /// Empty for a backend without platforms.
    platform: &'static str,
    filename: &'static str,
    entry_type: EntryType,
}

impl Known {
    /// Whether the type of an entry is that of this backend's file.
    fn allows(&self, entry: &Entry) -> bool {
        match self.entry_type {
            EntryType::File => !entry.is_dir,
            EntryType::Directory => entry.is_dir,
            EntryType::Either => true,
        }
    }
}

/// The most files of a directory that an error names.
const FILES_NAMED_MAX: usize = 8;

const fn known(backend: &'static str, platform: &'static str, filename: &'static str, entry_type: EntryType) -> Known {
    Known { backend, platform, filename, entry_type }
}

/// In the order in which they are tried.
const KNOWN: [Known; 9] = [
    known("tensorflow", "tensorflow_savedmodel", "model.savedmodel", EntryType::Directory),
    known("tensorflow", "tensorflow_graphdef", "model.graphdef", EntryType::File),
    known("tensorrt", "tensorrt_plan", "model.plan", EntryType::File),
    // A graph with external weights is a directory.
    known("onnxruntime", "onnxruntime_onnx", "model.onnx", EntryType::Either),
    known("openvino", "", "model.xml", EntryType::Either),
    known("pytorch", "pytorch_libtorch", "model.pt", EntryType::File),
    known("pytorch", "torch_aoti", "model.pt2", EntryType::File),
    known("python", "", "model.py", EntryType::Either),
    known("", "ensemble", "", EntryType::Either),
];

/// Sets backend, platform and default_model_filename, as far as they are empty. They are deduced from each other, and from the files in the lexically
/// first sub-directory of the model's directory (`None`: there is none). If that is not enough, a model named `x.<backend>` is run by `<backend>`.
pub fn deduce_backend(
    mut config: ModelConfig,
    model: &str,
    entries: Option<&[Entry]>,
) -> Result<ModelConfig, ConfigError> {
    if config.name.is_empty() {
        model.clone_into(&mut config.name);
    }
    if let Some(known) = KNOWN.iter().find(|known| indicates(known, &config, entries)) {
        fill(&mut config.backend, known.backend);
        fill(&mut config.platform, known.platform);
        fill(&mut config.default_model_filename, known.filename);
    } else if is_unset(&config) {
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

/// A sentence for a version directory in which no model's file was found: what it has, which names are looked for, and the cure.
pub fn no_model_file(directory: &str, entries: &[Entry]) -> String {
    let names: Vec<&str> = KNOWN.iter().map(|known| known.filename).filter(|name| !name.is_empty()).collect();
    let mut found: Vec<&str> = entries.iter().map(|entry| &*entry.name).collect();
    found.sort_unstable();
    let mut alike = entries.iter().filter_map(|entry| Some((entry, meant_name(entry)?)));
    let cure = match (alike.next(), alike.next()) {
        (Some((entry, name)), None) => format!("rename {} to {name}", entry.name),
        _ => "give the model's file one of these names, or name backend and default_model_filename in config.pbtxt"
            .to_owned(),
    };
    let found = if found.is_empty() { "nothing".to_owned() } else { listed(&found, FILES_NAMED_MAX) };
    format!("directory '{directory}' has {found}, and was searched for {}; {cure}", names.join(", "))
}

/// The name of a model's file with the same extension.
fn meant_name(entry: &Entry) -> Option<&'static str> {
    let (_, extension) = entry.name.rsplit_once('.')?;
    let has_extension = |known: &&Known| known.filename.strip_prefix("model.") == Some(extension);
    KNOWN.iter().find(has_extension).filter(|known| known.allows(entry)).map(|known| known.filename)
}

/// Whether the configuration, or otherwise the directory, indicates this backend.
fn indicates(known: &Known, config: &ModelConfig, entries: Option<&[Entry]>) -> bool {
    if !config.backend.is_empty() && config.backend != known.backend {
        return false;
    }
    if !config.platform.is_empty() {
        return config.platform == known.platform
            // For a backend without platforms, any value is accepted.
            || (known.platform.is_empty() && config.backend == known.backend);
    }
    if !config.default_model_filename.is_empty() {
        let named = config.default_model_filename == known.filename;
        // A file with an unknown name indicates the backend's first platform.
        return named || (config.backend == known.backend && is_first(known) && !any_named(config));
    }
    let exists = entries.unwrap_or_default().iter().any(|entry| entry.name == known.filename && known.allows(entry));
    exists || (config.backend == known.backend && is_first(known) && !any_exists(config, entries))
}

/// Whether this is the default platform of a backend. TensorFlow has none: the configuration must name the platform.
fn is_first(known: &Known) -> bool {
    !matches!(known.platform, "tensorflow_savedmodel" | "tensorflow_graphdef" | "torch_aoti" | "ensemble")
}

/// Whether the configured file name is that of one of the backend's platforms.
fn any_named(config: &ModelConfig) -> bool {
    KNOWN.iter().any(|known| known.backend == config.backend && known.filename == config.default_model_filename)
}

/// Whether the directory contains a file of one of the backend's platforms.
fn any_exists(config: &ModelConfig, entries: Option<&[Entry]>) -> bool {
    let entries = entries.unwrap_or_default();
    KNOWN
        .iter()
        .any(|known| known.backend == config.backend && entries.iter().any(|entry| entry.name == known.filename))
}

fn is_unset(config: &ModelConfig) -> bool {
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

    /// `[backend, platform, filename]`. A name that ends in `/` is a directory.
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
    fn files_indicate_the_backend() {
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
    fn the_first_file_in_the_tables_order_decides() {
        check(NOTHING, &["model.onnx", "model.py"], ["onnxruntime", "onnxruntime_onnx", "model.onnx"]);
        check(NOTHING, &["model.plan", "model.onnx"], ["tensorrt", "tensorrt_plan", "model.plan"]);
    }

    #[test]
    fn a_platform_or_a_file_name_alone_indicates_it_too() {
        check(["", "onnxruntime_onnx", ""], &[], ["onnxruntime", "onnxruntime_onnx", "model.onnx"]);
        check(["", "", "model.py"], &[], ["python", "", "model.py"]);
        check(["", "ensemble", ""], &[], ["", "ensemble", ""]);
    }

    #[test]
    fn configured_values_are_kept() {
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

    #[track_caller]
    fn check_hint(files: &[&str], found: &str, cure: &str) {
        let names =
            "model.savedmodel, model.graphdef, model.plan, model.onnx, model.xml, model.pt, model.pt2, model.py";
        let expect = format!("directory 'm/1' has {found}, and was searched for {names}; {cure}");
        assert_eq!(no_model_file("m/1", &entries(files)), expect);
    }

    #[test]
    fn a_directory_without_a_models_file_says_what_it_has_and_what_was_looked_for() {
        let any =
            "give the model's file one of these names, or name backend and default_model_filename in config.pbtxt";
        check_hint(&["mlp.onnx"], "mlp.onnx", "rename mlp.onnx to model.onnx");
        check_hint(&["labels.txt", "a.pt"], "a.pt, labels.txt", "rename a.pt to model.pt");
        check_hint(&[], "nothing", any);
        check_hint(&["weights.bin"], "weights.bin", any);
        // Two could be meant, and a folder cannot be a script's file.
        check_hint(&["b.onnx", "a.onnx"], "a.onnx, b.onnx", any);
        check_hint(&["a.pt/"], "a.pt", any);
        let many: Vec<String> = (0..100).map(|number| format!("f{number:02}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        check_hint(&many, "f00, f01, f02, f03, f04, f05, f06, f07 and more", any);
    }

    #[test]
    fn a_model_name_with_its_backend_suffices() {
        let found = deduce_backend(config(NOTHING), "echo.identity", None).unwrap();
        assert_eq!(found.backend, "identity");
        assert_eq!(found.default_model_filename, "model.identity");
        let found = deduce_backend(config(NOTHING), "a.b.c", Some(&[])).unwrap();
        assert_eq!(found.backend, "b.c");
    }

    #[test]
    fn without_any_indication_it_is_refused() {
        let refused = deduce_backend(config(NOTHING), "echo", None).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "Invalid model name: Could not determine backend for model 'echo' with no backend in \
             model configuration. Expected model name of the form 'model.<backend_name>'."
        );
    }
}
