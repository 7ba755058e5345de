//! How does a frozen graph of TensorFlow run?
//!
//! ```text
//!   model.graphdef ─► graph (nodes, checked) ─► lowering (for the shapes of a request) ─► plan (tract) ─► run
//! ```
//! A plan is made for each combination of input shapes, and kept for later requests with the same shapes. Requests of a batch run together.
#![forbid(unsafe_code)]

mod attributes;
mod config;
mod constant;
mod fact;
mod graph;
mod limits;
mod lowering;
mod model;
mod operators;
mod plan;
mod run;
mod tensors;

use std::path::Path;
use std::sync::Arc;

use nerite_backend_sdk::{
    Backend, BackendContext, Batch, Error, Instance, InstanceContext, Level, Model, ModelContext, Request, Response,
    log,
};

use config::Config;
use limits::GRAPH_BYTES_MAX;
use model::{Graphdef, load};

/// The backend.
struct Tensorflow {
    /// The largest batch of models whose configuration does not set one.
    default_batch: usize,
}

/// A model, and each of its instances.
struct Loaded(Arc<Graphdef>);

impl Backend for Tensorflow {
    type Model = Loaded;

    fn initialize(context: &BackendContext<'_>) -> Result<Tensorflow, Error> {
        let config: serde_json::Value = serde_json::from_str(&context.config()?).unwrap_or_default();
        let default = config["cmdline"]["default-max-batch-size"].as_str().and_then(|text| text.parse().ok());
        Ok(Tensorflow { default_batch: default.unwrap_or(4) })
    }

    fn load(&self, context: &ModelContext<'_>) -> Result<Loaded, Error> {
        let name = context.name()?;
        let about = |error: Error| Error::new(error.code(), format!("model '{name}': {error}"));
        let config = Config::parse(&context.config()?).map_err(about)?;
        let folder = Path::new(&context.directory()?).join(context.version()?.to_string());
        let content = read(&folder.join(config.file().map_err(about)?)).map_err(about)?;
        let loaded = load(&content, &config, context.completes()?, self.default_batch).map_err(about)?;
        if let Some(completed) = loaded.completed.filter(|_| config.inputs.is_empty() || config.outputs.is_empty()) {
            context.set_config(&completed)?;
        }
        log(Level::Verbose, &format!("model '{name}' has {} inputs", loaded.graph.inputs.len()));
        Ok(Loaded(Arc::new(loaded.graph)))
    }
}

/// The content of a graph's file.
fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |cause: std::io::Error| Error::invalid(format!("{}: {cause}", path.display()));
    let bytes = std::fs::metadata(path).map_err(failed)?.len();
    if bytes > GRAPH_BYTES_MAX {
        let text = format!("{} has {bytes} bytes, at most {GRAPH_BYTES_MAX} are taken", path.display());
        return Err(Error::unsupported(text));
    }
    std::fs::read(path).map_err(failed)
}

impl Model for Loaded {
    type Instance = Loaded;

    fn instance(&self, _: &InstanceContext<'_>) -> Result<Loaded, Error> {
        Ok(Loaded(Arc::clone(&self.0)))
    }
}

impl Instance for Loaded {
    fn infer(&mut self, request: &Request, response: &mut Response) -> Result<(), Error> {
        run::alone(&self.0, request, response)
    }

    fn run(&mut self, batch: Batch) {
        run::batch(&self.0, batch);
    }
}

nerite_backend_sdk::export_backend!(Tensorflow);
