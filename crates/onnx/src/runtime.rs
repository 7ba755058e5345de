//! How does the embedded engine load a model?

use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use nerite_backend::onnx::{self, BACKEND, Nodes, Ports, UntrustedInputs};
use nerite_backend::{CostBound, Instance, InstanceSpec, Joined, LoadContext, Model, Ragged, Runtime};
use nerite_config::ModelConfig;
use nerite_memory::CountedWeights;
use nerite_request::Status;
use nerite_request::report::MemoryUsage;
use rten::{LoadError, LoadErrorKind};
use rten_onnx::onnx::GraphProto;

use crate::convert::{CURE, is_spoken};
use crate::engine::{Engine, Fault};
use crate::graph::Written;
use crate::instance::EmbeddedInstance;
use crate::loaded::{Graph, Loaded};
use crate::losses::Losses;
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

    fn leaves_files_unchanged(&self) -> bool {
        true
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
        let (loaded, cost_bound) = open(context)?;
        if let Some(ignored) = ignored(&context.config) {
            log::warn!("model '{}': the embedded engine does nothing for {ignored}; {CURE}", context.model);
        }
        Ok(Arc::new(EmbeddedModel {
            loaded: Arc::new(loaded),
            threads: onnx::threads(context)?,
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

    fn memory_usage(&self) -> Vec<MemoryUsage> {
        MemoryUsage::of_host(self.loaded.constant_bytes)
    }

    fn instance(&self, _: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        let instance = EmbeddedInstance::new(&self.loaded, self.threads);
        Ok(Box::new(Joined::new(instance, self.batching).with_ragged(self.ragged.clone())))
    }
}

/// Settings that only ONNX Runtime follows.
fn ignored(config: &ModelConfig) -> Option<String> {
    let optimization = config.optimization.as_ref();
    let operations = config.model_operations.as_ref();
    let settings = [
        ("optimization.execution_accelerators", optimization.is_some_and(|o| o.execution_accelerators.is_some())),
        ("model_operations.op_library_filename", operations.is_some_and(|o| !o.op_library_filename.is_empty())),
    ];
    let set: Vec<&str> = settings.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| *name).collect();
    (!set.is_empty()).then(|| set.join(" and "))
}

/// The graph of a model, and what bounds the time of its runs.
fn open(context: &LoadContext) -> Result<(Loaded, CostBound), Status> {
    let path = onnx::model_file(context)?;
    let read_bytes = bytes(context, &path)?;
    let mut written = read(context, &path, &read_bytes)?;
    let nodes = Nodes::read(Cursor::new(&read_bytes[..]));
    let nodes = nodes.map_err(|e| unreadable(context, &path, &e.to_string()))?;
    let weights = CountedWeights::new(read_bytes.len());
    drop(read_bytes);
    onnx::watch_external(context, &path, &nodes);
    let mut ports = graph::ports(&written);
    let opened = onnx::check(context, &mut ports)?;
    check_datatypes(context, &ports)?;
    let defaults = defaults::take(&mut written.graph, &opened).map_err(|why| cannot(context, &why))?;
    let magnitudes = audit::audit(&written).map_err(|why| cannot(context, &why))?;
    let is_rewritten = rewrite::rewrite(&mut written.graph) || !defaults.is_empty();
    let (graph, constant_bytes) = load_pieces_or_whole(context, &path, &nodes, &ports, written, is_rewritten)?;
    let cost_bound = onnx::cost_bound(&nodes, &ports);
    let untrusted_inputs = UntrustedInputs::of(&nodes.graph);
    let losses = Losses::none();
    let loaded =
        Loaded { graph, ports, defaults, untrusted_inputs, magnitudes, constant_bytes, _weights: weights, losses };
    Ok((loaded, cost_bound))
}

fn load_pieces_or_whole(
    context: &LoadContext,
    path: &Path,
    nodes: &Nodes,
    ports: &Ports,
    mut written: Written,
    is_rewritten: bool,
) -> Result<(Graph, u64), Status> {
    let can_be_cut = cut::can_be_cut(&written.graph);
    let mut shared = Vec::new();
    if can_be_cut {
        // The file's bytes are dropped first. Otherwise the weights would be in memory three times while they are moved: in these bytes, in the graph
        // and in `shared`.
        drop(context.files.take_bytes(path));
        shared = weights::take(&mut written.graph);
    }
    let refers_to_shared = !shared.is_empty();
    let mut constant_bytes = shared.len() as u64;
    let engine = Engine::new(is_optimised(context), shared);
    let Some(program) = can_be_cut.then(|| cut::cut(&written.graph)).flatten() else {
        let proposed = Proposed::of(&written.graph);
        constant_bytes += weights::engine_bytes(&mut written.graph);
        let model = if is_rewritten || refers_to_shared {
            load_rewritten(context, path, &engine, written, refers_to_shared)?
        } else {
            load_as_written(context, path, &engine, nodes, written)?
        };
        let staged = Staged::new(model, proposed, onnx::cost_bound(nodes, ports));
        return Ok((Graph::whole(staged, ports), constant_bytes));
    };
    // From here on only the pieces are needed.
    written.graph = GraphProto::default();
    let mut load = |mut piece| {
        constant_bytes += weights::engine_bytes(&mut piece);
        let (proposed, ports) = (Proposed::of(&piece), graph::piece_ports(&piece));
        let bytes = written.piece_bytes(piece).map_err(|why| cannot(context, &why))?;
        let nodes = Nodes::read(Cursor::new(&bytes[..])).map_err(|e| cannot(context, &e.to_string()))?;
        let bound = onnx::cost_bound(&nodes, &ports);
        Ok(Staged::new(load_graph(context, path, &engine, Source::Rewritten(bytes))?, proposed, bound))
    };
    let graph = Graph::cut(program.compile(&mut load)?, ports);
    Ok((graph, constant_bytes))
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
#[allow(clippy::unwrap_used)]
mod tests {
    use nerite_backend::conformance;
    use nerite_memory::Buffer;
    use nerite_tensor::{DataType, Shape, Tensor};
    use rten::Value;
    use rten_tensor::AsView;

    use super::*;
    use crate::feed::Feed;
    use crate::runner::{Lists, RunOutcome, Runner, Task};

    /// The server's allocator. Without it, the memory of runs has no bound.
    #[global_allocator]
    static HEAP: nerite_memory::Heap = nerite_memory::Heap;

    const THREADS: usize = 3;
    const COUNT: usize = 64;
    const SIDE: usize = 96;

    #[test]
    fn the_version_told_is_the_version_built() {
        let lock = include_str!("../../../Cargo.lock");
        assert!(lock.contains(&format!("name = \"rten\"\nversion = \"{VERSION}\"")));
    }

    #[test]
    fn settings_of_the_other_engine_are_named() {
        let ignored = |settings: &str| {
            let text = format!("backend: 'onnxruntime' {settings}");
            super::ignored(&nerite_config::parse_text("config.pbtxt", text.as_bytes()).unwrap())
        };
        assert_eq!(ignored("optimization { graph { level: 1 } }"), None);
        assert_eq!(
            ignored("optimization { execution_accelerators { } } model_operations { op_library_filename: 'x.so' }"),
            Some("optimization.execution_accelerators and model_operations.op_library_filename".to_owned())
        );
    }

    /// Multiplies many matrices on several threads, in a run that may use this many bytes.
    fn products(loaded: &Arc<Loaded>, bytes_max: usize) -> RunOutcome {
        let shape = Shape::from_slice(&[COUNT as i64, SIDE as i64, SIDE as i64]);
        let data = Buffer::from_numbers(matrices(|row, column| row ^ 1 == column));
        let tensor = Tensor { name: "x".into(), datatype: DataType::Fp32, shape, data };
        let lists = Lists { feeds: vec![Feed { index: 0, tensor, copy: None }], wanted: vec![0], ..Lists::default() };
        let mut runner = Runner::start(THREADS, bytes_max).unwrap();
        runner.run(Task { loaded: Arc::clone(loaded), lists, is_over: Arc::default() })
    }

    fn matrices(is_one: impl Fn(usize, usize) -> bool) -> Vec<f32> {
        let number = |at: usize| f32::from(u8::from(is_one(at / SIDE % SIDE, at % SIDE)));
        (0..COUNT * SIDE * SIDE).map(number).collect()
    }

    #[test]
    fn a_product_of_many_matrices_is_given_up_while_several_threads_compute() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
        let context = conformance::completed(&Embedded, conformance::graph_context(&folder, "products")).unwrap();
        let loaded = Arc::new(open(&context).unwrap().0);
        let matrix = SIDE * SIDE * size_of::<f32>();
        let results = COUNT * matrix;
        let mut given_up = 0;
        for bytes_max in (results..results + 3 * matrix).step_by(matrix / 4) {
            if let RunOutcome::Lost(refused) = products(&loaded, bytes_max) {
                // The memory for the results is there. Each thread copies a matrix before it multiplies.
                given_up += u32::from(refused.requested <= 2 * matrix);
                assert!(matches!(products(&loaded, usize::MAX), RunOutcome::Done(Ok(_), _)), "after {refused:?}");
            }
        }
        assert!(given_up > 0);
        let RunOutcome::Done(Ok(values), _) = products(&loaded, usize::MAX) else { panic!("enough memory") };
        let [Value::FloatTensor(y)] = &values[..] else { panic!("one output") };
        assert_eq!(y.to_vec(), matrices(|row, column| row == column));
    }
}
