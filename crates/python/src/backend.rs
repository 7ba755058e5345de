//! How do models run whose backend is a Python class?
//!
//! Triton calls them Python-based backends. vLLM's is one.
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

use crate::backend_class::BACKEND_CLASS;
use crate::runtime::Python;

/// A backend that is a Python class. Its models run in processes of their own, like those of the backend `python`.
pub struct PythonBackend {
    name: String,
    directory: PathBuf,
    python: Arc<Python>,
}

impl PythonBackend {
    /// The backend of this name, whose class is in `directory`. It shares the supervisor, the memory and the environments of `python`.
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
