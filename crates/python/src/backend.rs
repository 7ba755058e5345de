//! How do models run whose backend is a Python class? (Triton's Python-based backends, as vLLM's)
//!
//! ```text
//!   --backend-directory/vllm/model.py           the class, for all models of backend "vllm"
//!                            pb_exec_env_model.py.tar.gz   its environment, if the backend brings one
//!   repository/opt/config.pbtxt                 backend: "vllm"
//!              1/model.json                     what the class reads there
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nerite_backend::{LoadContext, Model, Runtime};
use nerite_config::ModelConfig;
use nerite_request::Status;

use crate::runtime::Python;

/// The file with a backend's class, and the value of `runtime` in a configuration that asks for it.
pub const BACKEND_CLASS: &str = "model.py";

/// A backend that is a Python class. Its models are run as those of the backend `python` are, in processes of their own.
pub struct PythonBackend {
    name: String,
    directory: PathBuf,
    python: Arc<Python>,
}

impl PythonBackend {
    /// The backend of this name, whose class is in `directory`. It shares processes' memory and environments with `python`.
    pub fn new(name: &str, directory: &Path, python: &Arc<Python>) -> PythonBackend {
        let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        PythonBackend { name: name.to_owned(), directory, python: Arc::clone(python) }
    }
}

impl Runtime for PythonBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn engine(&self) -> String {
        format!("a Python class, {}", self.directory.join(BACKEND_CLASS).display())
    }

    fn complete(&self, context: &LoadContext) -> Result<ModelConfig, Status> {
        self.python.complete_with(context, Some(&self.directory))
    }

    fn offers_gpus(&self) -> Result<(), String> {
        self.python.offers_gpus()
    }

    fn load(&self, context: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        self.python.load_with(context, Some(&self.directory))
    }
}

/// The backends in a directory that are Python classes: their names and directories.
pub fn python_backends_in(directory: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .filter(|(_, path)| path.join(BACKEND_CLASS).is_file())
        .collect();
    found.sort();
    found
}

/// The environment that a backend brings: an archive beside its class.
pub(crate) fn environment_in(directory: &Path) -> Option<PathBuf> {
    let archive = directory.join(format!("pb_exec_env_{BACKEND_CLASS}.tar.gz"));
    archive.is_file().then_some(archive)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_backend_is_a_directory_with_a_class() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["vllm/model.py", "a/model.py", "b/libtriton_b.so", "model.py"] {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let names: Vec<_> = python_backends_in(folder.path()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "vllm"]);
        assert!(python_backends_in(&folder.path().join("none")).is_empty());
    }

    #[test]
    fn an_environment_lies_beside_the_class() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(environment_in(folder.path()), None);
        let archive = folder.path().join("pb_exec_env_model.py.tar.gz");
        std::fs::write(&archive, "").unwrap();
        assert_eq!(environment_in(folder.path()), Some(archive));
    }
}
