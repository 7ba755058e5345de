//! What does an ONNX file say about its graph?

use std::collections::HashSet;

use nerite_backend::onnx::{Dim, Port, Ports};
use nerite_tensor::DataType;
use rten_onnx::onnx::{DataType as Onnx, Dimension, GraphProto, ModelProto, ValueInfoProto};

/// A graph, with the version of the standard operators that it uses.
pub struct Written {
    /// The graph.
    pub graph: GraphProto,
    /// The version; the newest one if the file has none, as for the engine.
    pub opset: i64,
    /// The other parts of the file.
    around: ModelProto,
}

impl Written {
    /// Whether the file has its format version. By that the engine recognises the bytes of an ONNX file.
    pub fn has_format_version(&self) -> bool {
        self.around.ir_version.is_some()
    }

    /// A piece of the graph as the bytes of a file. A version of the format is stated, by which the engine recognises it.
    pub fn piece_bytes(&self, piece: GraphProto) -> Result<Vec<u8>, String> {
        let ModelProto { opset_import, ir_version, .. } = &self.around;
        let (ir_version, opset_import) = (ir_version.or(Some(IR_REPLACEABLE)), opset_import.clone());
        let model = ModelProto { ir_version, graph: Some(piece), opset_import, ..ModelProto::default() };
        model.write_buf().map_err(|e| e.to_string())
    }

    /// The present graph as the bytes of a file.
    pub fn into_bytes(self) -> Result<Vec<u8>, String> {
        ModelProto { graph: Some(self.graph), ..self.around }.write_buf().map_err(|e| e.to_string())
    }
}

/// Reads a file's bytes.
pub fn read(bytes: &[u8]) -> Result<Written, String> {
    let mut model = ModelProto::parse_buf(bytes).map_err(|e| e.to_string())?;
    let standard = |domain: &Option<String>| domain.as_deref().is_none_or(|name| name.is_empty() || name == "ai.onnx");
    let opset = model.opset_import.iter().find(|set| standard(&set.domain)).and_then(|set| set.version);
    let graph = model.graph.take().filter(|graph| !graph.output.is_empty());
    let graph = graph.ok_or_else(|| "it has no graph with outputs".to_owned())?;
    Ok(Written { graph, opset: opset.unwrap_or(i64::MAX), around: model })
}

/// How many dimensions a value is declared to have.
pub fn rank(value: &ValueInfoProto) -> Option<usize> {
    Some(value.r#type.as_ref()?.tensor_type.as_ref()?.shape.as_ref()?.dim.len())
}

/// From this version of the format on, an initializer need not be an input, and one that is an input can be replaced.
const IR_REPLACEABLE: i64 = 4;

/// The inputs and outputs of the graph. As in ONNX Runtime, an input with an initializer can be replaced, except in old files, where it is a
/// constant.
pub fn ports(written: &Written) -> Ports {
    let graph = &written.graph;
    let constants: HashSet<Option<&str>> = graph.initializer.iter().map(|constant| constant.name.as_deref()).collect();
    let (initializers, inputs): (Vec<_>, Vec<_>) =
        graph.input.iter().partition(|value| constants.contains(&value.name.as_deref()));
    let is_old = written.around.ir_version.is_none_or(|version| version < IR_REPLACEABLE);
    Ports {
        inputs: inputs.into_iter().map(port).collect(),
        initializers: if is_old { Vec::new() } else { initializers.into_iter().map(port).collect() },
        outputs: graph.output.iter().map(port).collect(),
    }
}

/// The inputs of a piece of a graph. If another piece makes an input, its datatype may not be declared. Such an input counts as one of integers,
/// which is safe for the bound of the time: the engine has no strings, and only a division of floating-point numbers takes the same time for all
/// values.
pub fn piece_ports(piece: &GraphProto) -> Ports {
    let constants: HashSet<Option<&str>> = piece.initializer.iter().map(|constant| constant.name.as_deref()).collect();
    let inputs = piece.input.iter().filter(|value| !constants.contains(&value.name.as_deref())).map(port);
    let typed = |port: Port| Port { datatype: port.datatype.or(Some(DataType::Int32)), ..port };
    Ports { inputs: inputs.map(typed).collect(), initializers: Vec::new(), outputs: Vec::new() }
}

/// The datatype of requests for this type of ONNX.
pub fn datatype(onnx: Onnx) -> Option<DataType> {
    Some(match onnx {
        Onnx::BOOL => DataType::Bool,
        Onnx::UINT8 => DataType::Uint8,
        Onnx::UINT16 => DataType::Uint16,
        Onnx::UINT32 => DataType::Uint32,
        Onnx::UINT64 => DataType::Uint64,
        Onnx::INT8 => DataType::Int8,
        Onnx::INT16 => DataType::Int16,
        Onnx::INT32 => DataType::Int32,
        Onnx::INT64 => DataType::Int64,
        Onnx::FLOAT16 => DataType::Fp16,
        Onnx::FLOAT => DataType::Fp32,
        Onnx::DOUBLE => DataType::Fp64,
        Onnx::STRING => DataType::Bytes,
        Onnx::BFLOAT16 => DataType::Bf16,
        _ => return None,
    })
}

/// The element type that a value is declared to have.
pub fn element_type(value: &ValueInfoProto) -> Option<Onnx> {
    value.r#type.as_ref()?.tensor_type.as_ref()?.elem_type
}

fn port(value: &ValueInfoProto) -> Port {
    let tensor = value.r#type.as_ref().and_then(|kind| kind.tensor_type.as_ref());
    let shape = tensor.and_then(|tensor| tensor.shape.as_ref());
    let dims = shape.map(|shape| shape.dim.iter().map(dim).collect());
    Port::new(value.name.as_deref().unwrap_or_default(), element_type(value).and_then(datatype), dims)
}

fn dim(dim: &Dimension) -> Dim {
    match (dim.dim_value, &dim.dim_param) {
        // Some exporters write an open dimension as 0 or below.
        (Some(size), _) if size > 0 => Dim::Fixed(size),
        (_, Some(name)) if !name.is_empty() => Dim::Named(name.clone()),
        _ => Dim::Open,
    }
}
