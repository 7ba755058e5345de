//! How does the embedded engine load a model?

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use nerite_backend::onnx::{self, BACKEND, Nodes, Ports, UntrustedInputs};
use nerite_backend::{CostBound, Instance, InstanceSpec, Joined, LoadContext, Model, Ragged, Runtime};
use nerite_config::ModelConfig;
use nerite_request::Status;
use rten::{LoadError, LoadErrorKind, ModelOptions};

use crate::convert::{CURE, is_spoken};
use crate::graph::Written;
use crate::instance::EmbeddedInstance;
use crate::loaded::{Graph, Loaded};
use crate::{audit, cut, defaults, graph, rewrite};

/// The engine's version, as in Cargo.lock.
const VERSION: &str = "0.27.0";

/// `optimization.graph.level` for a model that runs as it is written.
const NO_OPTIMIZATION: i32 = 2;

/// Models of backend `onnxruntime` on the engine that is compiled in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Embedded;

impl Runtime for Embedded {
    fn name(&self) -> &'static str {
        BACKEND
    }

    fn engine(&self) -> String {
        format!("rten {VERSION} (embedded)")
    }

    fn offers_gpus(&self) -> Result<(), String> {
        Err("the embedded engine computes on the host: install ONNX Runtime with its CUDA provider (pip install \
             onnxruntime-gpu) or name its library with --onnxruntime-library"
            .into())
    }

    fn complete(&self, context: &LoadContext) -> Result<ModelConfig, Status> {
        onnx::complete(context, |context| {
            let path = onnx::model_file(context)?;
            Ok(graph::ports(&read(context, &path, &bytes(context, &path)?)?))
        })
    }

    fn load(&self, context: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        let path = onnx::model_file(context)?;
        let read_bytes = bytes(context, &path)?;
        let mut written = read(context, &path, &read_bytes)?;
        let nodes = Nodes::read(Cursor::new(&read_bytes[..]));
        let nodes = nodes.map_err(|e| unreadable(context, &path, &e.to_string()))?;
        drop(read_bytes);
        onnx::watch_external(context, &path, &nodes);
        let mut ports = graph::ports(&written);
        let opened = onnx::check(context, &mut ports)?;
        check_datatypes(context, &ports)?;
        let defaults = defaults::take(&mut written.graph, &opened).map_err(|why| cannot(context, &why))?;
        let magnitudes = audit::audit(&written).map_err(|why| cannot(context, &why))?;
        let is_rewritten = rewrite::rewrite(&mut written.graph) || !defaults.is_empty();
        let graph = match cut::cut(&written.graph) {
            Some(program) => {
                let mut load = |piece| {
                    let bytes = written.piece_bytes(piece).map_err(|why| cannot(context, &why))?;
                    load_graph(context, &path, &Source::Rewritten(bytes))
                };
                Graph::cut(program.compile(&mut load)?, &ports)
            }
            None => Graph::whole(load_whole(context, &path, &nodes, written, is_rewritten)?, &ports),
        };
        let threads = onnx::threads(context)?;
        let cost_bound = onnx::cost_bound(&nodes, &ports);
        let untrusted_inputs = UntrustedInputs::of(&nodes.graph);
        let lost = AtomicU32::new(0);
        let loaded = Arc::new(Loaded { graph, ports, defaults, untrusted_inputs, magnitudes, lost });
        Ok(Arc::new(EmbeddedModel {
            loaded,
            threads,
            batching: context.config.batches(),
            ragged: Ragged::of(&context.config),
            cost_bound,
        }))
    }
}

struct EmbeddedModel {
    loaded: Arc<Loaded>,
    threads: usize,
    batching: bool,
    ragged: Ragged,
    cost_bound: CostBound,
}

impl Model for EmbeddedModel {
    fn cost_bound(&self) -> CostBound {
        self.cost_bound
    }

    fn instance(&self, _: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        let instance = EmbeddedInstance::new(&self.loaded, self.threads);
        Ok(Box::new(Joined::new(instance, self.batching).with_ragged(self.ragged.clone())))
    }
}

/// What the engine reads a graph from.
enum Source {
    /// The bytes that the load read.
    Read,
    /// The same graph, rewritten so that the engine computes it right.
    Rewritten(Vec<u8>),
    /// The file, whose name ends with `.onnx`. The engine finds external data beside it.
    File,
}

fn bytes(context: &LoadContext, path: &Path) -> Result<Arc<Vec<u8>>, Status> {
    context.files.bytes(path).map_err(|e| unreadable(context, path, &e.to_string()))
}

fn read(context: &LoadContext, path: &Path, bytes: &[u8]) -> Result<Written, Status> {
    graph::read(bytes).map_err(|why| unreadable(context, path, &why))
}

/// The bytes of a graph that was rewritten.
fn rewritten(context: &LoadContext, written: Written) -> Result<Vec<u8>, Status> {
    if let Some(constant) = rewrite::constant_outside(&written.graph) {
        return Err(cannot(
            context,
            &format!(
                "it has ArgMax or ArgMin, where the engine would choose the last of equal values, a convolution without \
                 kernel_shape, a pool without strides, or an input with an initializer, and cannot be rewritten because the constant '{constant}' is kept in another file"
            ),
        ));
    }
    written.into_bytes().map_err(|why| cannot(context, &why))
}

/// Loads the graph in one piece. It is dropped before the engine makes its own. Otherwise its weights would be in memory twice.
fn load_whole(
    context: &LoadContext,
    path: &Path,
    nodes: &Nodes,
    written: Written,
    is_rewritten: bool,
) -> Result<rten::Model, Status> {
    let is_known = nodes.external_files.is_empty() && written.tells_version();
    let source = if is_rewritten {
        Source::Rewritten(rewritten(context, written)?)
    } else {
        drop(written);
        if is_known { Source::Read } else { Source::File }
    };
    load_graph(context, path, &source)
}

/// Loads the graph, optimised unless the configuration says no. The engine's optimiser panics at some graphs that the
/// engine runs well without it. These are loaded again without the optimiser.
fn load_graph(context: &LoadContext, path: &Path, source: &Source) -> Result<rten::Model, Status> {
    let level = context.config.optimization.as_ref().and_then(|o| o.graph.as_ref()).map_or(0, |graph| graph.level);
    let mut first_error = None;
    for optimise in [true, false] {
        if optimise && level == NO_OPTIMIZATION {
            continue;
        }
        // The engine keeps none of these bytes, and no later look needs them. A second attempt reads the file again.
        let bytes = match source {
            Source::Read => context.files.take_bytes(path).map_err(|e| unreadable(context, path, &e.to_string()))?,
            Source::Rewritten(bytes) => bytes.clone(),
            Source::File => Vec::new(),
        };
        let is_file = matches!(source, Source::File);
        match catch_unwind(AssertUnwindSafe(|| load_once((!is_file).then_some(bytes), path, optimise))) {
            Ok(Ok(model)) => return Ok(model),
            Ok(Err(error)) if error.kind() != LoadErrorKind::OptimizeError => {
                return Err(refused(context, path, &error));
            }
            Ok(Err(error)) => first_error = first_error.or_else(|| Some(cannot(context, &error.to_string()))),
            Err(_) => {}
        }
    }
    Err(first_error.unwrap_or_else(|| cannot(context, "it fails in the middle of loading the graph")))
}

fn load_once(bytes: Option<Vec<u8>>, path: &Path, optimise: bool) -> Result<rten::Model, LoadError> {
    let mut options = ModelOptions::with_all_ops();
    options.enable_optimization(optimise);
    match bytes {
        Some(bytes) => options.load(bytes),
        None => options.load_file(path),
    }
}

fn refused(context: &LoadContext, path: &Path, error: &LoadError) -> Status {
    match error.kind() {
        LoadErrorKind::IoError | LoadErrorKind::ParseError | LoadErrorKind::UnknownFileType => {
            unreadable(context, path, &error.to_string())
        }
        _ => cannot(context, &error.to_string()),
    }
}

fn check_datatypes(context: &LoadContext, ports: &Ports) -> Result<(), Status> {
    let sides =
        ports.inputs.iter().map(|port| ("input", port)).chain(ports.outputs.iter().map(|port| ("output", port)));
    for (side, port) in sides {
        match port.datatype {
            Some(datatype) if is_spoken(datatype) => {}
            Some(datatype) => {
                return Err(cannot(context, &format!("{side} '{}' is {datatype}, which it lacks", port.name)));
            }
            None => return Err(cannot(context, &format!("{side} '{}' is no tensor that it knows", port.name))),
        }
    }
    Ok(())
}

fn unreadable(context: &LoadContext, path: &Path, why: &str) -> Status {
    Status::internal(format!("unable to load model '{}': '{}' cannot be read: {why}", context.model, path.display()))
}

fn cannot(context: &LoadContext, why: &str) -> Status {
    Status::unsupported(format!(
        "unable to load model '{}' on the embedded engine (rten {VERSION}): {why}; {CURE}",
        context.model
    ))
}

#[cfg(test)]
mod tests {
    use super::VERSION;

    #[test]
    fn the_version_told_is_the_version_built() {
        let lock = include_str!("../../../Cargo.lock");
        assert!(lock.contains(&format!("name = \"rten\"\nversion = \"{VERSION}\"")));
    }
}
