//! How does the embedded engine load a model?

use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use nerite_backend::onnx::{self, BACKEND, Nodes, Ports, UntrustedInputs};
use nerite_backend::{CostBound, Instance, InstanceSpec, Joined, LoadContext, Model, Ragged, Runtime};
use nerite_config::ModelConfig;
use nerite_request::Status;
use rten::{LoadError, LoadErrorKind};
use rten_onnx::onnx::GraphProto;

use crate::convert::{CURE, is_spoken};
use crate::engine::{Engine, Fault};
use crate::graph::Written;
use crate::instance::EmbeddedInstance;
use crate::loaded::{Graph, Loaded};
use crate::staged::{Proposed, Staged};
use crate::{audit, cut, defaults, graph, rewrite, weights};

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
        let graph = load_pieces_or_whole(context, &path, &nodes, &ports, written, is_rewritten)?;
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

fn load_pieces_or_whole(
    context: &LoadContext,
    path: &Path,
    nodes: &Nodes,
    ports: &Ports,
    mut written: Written,
    is_rewritten: bool,
) -> Result<Graph, Status> {
    let can_be_cut = cut::can_be_cut(&written.graph);
    let mut shared = Vec::new();
    if can_be_cut {
        // Otherwise the weights would be in memory three times while they are moved: in the file's bytes, in the graph and in one place.
        drop(context.files.take_bytes(path));
        shared = weights::take(&mut written.graph);
    }
    let refers_to_shared = !shared.is_empty();
    let engine = Engine::new(is_optimised(context), shared);
    let Some(program) = can_be_cut.then(|| cut::cut(&written.graph)).flatten() else {
        let proposed = Proposed::of(&written.graph);
        let model = if is_rewritten || refers_to_shared {
            load_rewritten(context, path, &engine, written, refers_to_shared)?
        } else {
            load_as_written(context, path, &engine, nodes, written)?
        };
        return Ok(Graph::whole(Staged::new(model, proposed, onnx::cost_bound(nodes, ports)), ports));
    };
    // The pieces are all that is still needed.
    written.graph = GraphProto::default();
    let mut load = |piece| {
        let (proposed, ports) = (Proposed::of(&piece), graph::piece_ports(&piece));
        let bytes = written.piece_bytes(piece).map_err(|why| cannot(context, &why))?;
        let nodes = Nodes::read(Cursor::new(&bytes[..])).map_err(|e| cannot(context, &e.to_string()))?;
        let bound = onnx::cost_bound(&nodes, &ports);
        Ok(Staged::new(load_graph(context, path, &engine, Source::Rewritten(bytes))?, proposed, bound))
    };
    Ok(Graph::cut(program.compile(&mut load)?, ports))
}

/// The source that the engine reads a graph from.
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

fn is_optimised(context: &LoadContext) -> bool {
    let optimization = context.config.optimization.as_ref();
    optimization.and_then(|optimization| optimization.graph.as_ref()).is_none_or(|graph| graph.level != NO_OPTIMIZATION)
}

/// Loads, in one piece, a graph that was rewritten or that refers to weights that were moved out of it.
fn load_rewritten(
    context: &LoadContext,
    path: &Path,
    engine: &Engine,
    written: Written,
    refers_to_shared: bool,
) -> Result<rten::Model, Status> {
    if let Some(constant) = rewrite::constant_outside(&written.graph).filter(|_| !refers_to_shared) {
        return Err(cannot(
            context,
            &format!(
                "it has ArgMax or ArgMin, where the engine would choose the last of equal values, a convolution without \
                 kernel_shape, a pool without strides, or an input with an initializer, and cannot be rewritten because the constant '{constant}' is kept in another file"
            ),
        ));
    }
    let bytes = written.into_bytes().map_err(|why| cannot(context, &why))?;
    load_graph(context, path, engine, Source::Rewritten(bytes))
}

/// Loads the graph of the file in one piece. It is dropped before the engine makes its own. Otherwise its weights would be in memory twice.
fn load_as_written(
    context: &LoadContext,
    path: &Path,
    engine: &Engine,
    nodes: &Nodes,
    written: Written,
) -> Result<rten::Model, Status> {
    let is_known = nodes.external_files.is_empty() && written.has_format_version();
    drop(written);
    load_graph(context, path, engine, if is_known { Source::Read } else { Source::File })
}

fn load_graph(context: &LoadContext, path: &Path, engine: &Engine, mut source: Source) -> Result<rten::Model, Status> {
    let mut give = |is_last: bool| {
        Ok(match &mut source {
            // The engine keeps none of these bytes, and nothing reads them later. A second attempt reads the file again.
            Source::Read => {
                Some(context.files.take_bytes(path).map_err(|e| unreadable(context, path, &e.to_string()))?)
            }
            Source::Rewritten(bytes) if is_last => Some(std::mem::take(bytes)),
            Source::Rewritten(bytes) => Some(bytes.clone()),
            Source::File => None,
        })
    };
    match engine.load(path, &mut give) {
        Ok((model, _)) => Ok(model),
        Err(Fault::Bytes(status)) => Err(status),
        Err(Fault::Refused(error)) => Err(refused(context, path, &error)),
        Err(Fault::Panicked) => Err(cannot(context, "it fails in the middle of loading the graph")),
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
