//! Which kinds of request are counted?

use std::fs;
use std::path::Path;

/// A kind of request. Its model has one input, [`INPUT`], and one output.
#[derive(Clone, Copy)]
pub struct Kind {
    pub protocol: Protocol,
    pub tensors: Tensors,
    pub model: Model,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Http,
    Grpc,
    Session,
    /// In a session, for a request that was prepared.
    Prepared,
}

/// Where the tensors are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Tensors {
    Inline,
    Region,
    Lease,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Model {
    /// Its name on the page.
    pub label: &'static str,
    pub engine: Engine,
    pub name: &'static str,
    pub input: &'static str,
    pub output: &'static str,
    pub output_bytes: u64,
}

/// What runs it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    Identity,
    OnnxRuntime,
    Embedded,
    Python,
}

pub const INPUT: [f32; 16] = [1.0; 16];

const IDENTITY: Model = Model {
    label: "identity",
    engine: Engine::Identity,
    name: "identity_fp32",
    input: "INPUT0",
    output: "OUTPUT0",
    output_bytes: 64,
};
/// With names that do not lie in place.
const LONG_NAMES: Model = Model {
    label: "identity, long names",
    name: "a_model_whose_name_is_long_for_a_name",
    input: "an_input_whose_name_is_long_for_a_name",
    output: "an_output_whose_name_is_long_for_a_name",
    ..IDENTITY
};
/// The positions of the numbers that are not zero. The values decide how long a run takes, so each runs on a worker, however quick the runs are here. Which
/// thread runs a request of another net depends on the machine.
const EMBEDDED: Model = Model {
    label: "embedded engine",
    engine: Engine::Embedded,
    name: "find",
    input: "x",
    output: "found",
    output_bytes: 128,
};
const ONNX_RUNTIME: Model = Model { label: "ONNX Runtime", engine: Engine::OnnxRuntime, ..EMBEDDED };
const PYTHON: Model = Model { label: "Python", engine: Engine::Python, name: "python_identity", ..IDENTITY };

const fn kind(protocol: Protocol, tensors: Tensors, model: Model) -> Kind {
    Kind { protocol, tensors, model }
}

/// Each protocol, each place of tensors and each engine.
pub const KINDS: [Kind; 13] = [
    kind(Protocol::Http, Tensors::Inline, IDENTITY),
    kind(Protocol::Http, Tensors::Region, IDENTITY),
    kind(Protocol::Http, Tensors::Region, LONG_NAMES),
    kind(Protocol::Http, Tensors::Region, ONNX_RUNTIME),
    kind(Protocol::Http, Tensors::Inline, EMBEDDED),
    kind(Protocol::Grpc, Tensors::Inline, IDENTITY),
    kind(Protocol::Grpc, Tensors::Region, IDENTITY),
    kind(Protocol::Grpc, Tensors::Region, EMBEDDED),
    kind(Protocol::Grpc, Tensors::Inline, PYTHON),
    kind(Protocol::Session, Tensors::Region, PYTHON),
    kind(Protocol::Session, Tensors::Lease, IDENTITY),
    kind(Protocol::Session, Tensors::Lease, ONNX_RUNTIME),
    kind(Protocol::Prepared, Tensors::Lease, IDENTITY),
];

impl Kind {
    /// The beginning of its row on the page.
    pub fn name(&self) -> String {
        let protocol = match self.protocol {
            Protocol::Http => "HTTP",
            Protocol::Grpc => "gRPC",
            Protocol::Session => "session",
            Protocol::Prepared => "session, prepared",
        };
        let tensors = match self.tensors {
            Tensors::Inline => "inline",
            Tensors::Region => "region",
            Tensors::Lease => "lease",
        };
        format!("{protocol} | {tensors} | {}", self.model.label)
    }
}

const PYTHON_IDENTITY: &str = "
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(one, 'INPUT0') for one in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUTPUT0', one.as_numpy())]) for one in inputs]
";

/// Makes a repository with the models of these engines.
pub fn make_repository(folder: &Path, engines: &[Engine]) {
    for model in KINDS.map(|kind| kind.model).iter().filter(|model| engines.contains(&model.engine)) {
        let (backend, output, file) = match model.engine {
            Engine::Identity => ("identity", "TYPE_FP32 dims: [-1]", None),
            Engine::Python => ("python", "TYPE_FP32 dims: [-1]", Some(("model.py", PYTHON_IDENTITY.into()))),
            Engine::OnnxRuntime | Engine::Embedded => {
                let graph = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/models/find.onnx");
                ("onnxruntime", "TYPE_INT64 dims: [1, -1]", Some(("model.onnx", fs::read(graph).unwrap())))
            }
        };
        let Model { name, input: from, output: to, .. } = model;
        let config = format!(
            "backend: '{backend}' input [{{ name: '{from}' data_type: TYPE_FP32 dims: [-1] }}] \
             output [{{ name: '{to}' data_type: {output} }}]",
        );
        fs::create_dir_all(folder.join(name).join("1")).unwrap();
        fs::write(folder.join(name).join("config.pbtxt"), config).unwrap();
        if let Some((file, content)) = file {
            fs::write(folder.join(name).join("1").join(file), content).unwrap();
        }
    }
}
