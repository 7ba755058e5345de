//! Which inputs and outputs does a session have?

use nerite_backend::onnx::{Dim, Port, Ports};
use nerite_tensor::DataType;
use ort::session::Session;
use ort::sys::ONNXTensorElementDataType as Sys;
use ort::value::{Outlet, TensorElementType as Element, ValueType};

/// The inputs and outputs of a session.
pub fn ports(session: &Session) -> Ports {
    let all = |outlets: &[Outlet]| outlets.iter().map(|outlet| port(outlet.name(), outlet.dtype())).collect();
    let initializers = session.overridable_initializers();
    Ports {
        inputs: all(session.inputs()),
        initializers: initializers.iter().map(|one| port(one.name(), one.dtype())).collect(),
        outputs: all(session.outputs()),
    }
}

fn port(name: &str, kind: &ValueType) -> Port {
    let name = name.to_owned();
    match kind {
        ValueType::Tensor { ty, shape, dimension_symbols } => {
            let dims = shape.iter().zip(dimension_symbols.iter());
            let dims = dims.map(|(size, symbol)| match (size, symbol.as_str()) {
                (size, _) if *size >= 0 => Dim::Fixed(*size),
                (_, "") => Dim::Open,
                (_, symbol) => Dim::Named(symbol.to_owned()),
            });
            Port::new(name, datatype(*ty), Some(dims.collect()))
        }
        // Sequences, maps and optional values are no tensors: the configuration's check refuses them by their datatype.
        _ => Port::new(name, None, None),
    }
}

fn datatype(element: Element) -> Option<DataType> {
    Some(match element {
        Element::Bool => DataType::Bool,
        Element::Uint8 => DataType::Uint8,
        Element::Uint16 => DataType::Uint16,
        Element::Uint32 => DataType::Uint32,
        Element::Uint64 => DataType::Uint64,
        Element::Int8 => DataType::Int8,
        Element::Int16 => DataType::Int16,
        Element::Int32 => DataType::Int32,
        Element::Int64 => DataType::Int64,
        Element::Float16 => DataType::Fp16,
        Element::Float32 => DataType::Fp32,
        Element::Float64 => DataType::Fp64,
        Element::String => DataType::Bytes,
        Element::Bfloat16 => DataType::Bf16,
        _ => return None,
    })
}

/// The library's number of a datatype.
pub fn to_sys(datatype: DataType) -> Sys {
    match datatype {
        DataType::Bool => Sys::ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,
        DataType::Uint8 => Sys::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,
        DataType::Uint16 => Sys::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16,
        DataType::Uint32 => Sys::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32,
        DataType::Uint64 => Sys::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64,
        DataType::Int8 => Sys::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8,
        DataType::Int16 => Sys::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16,
        DataType::Int32 => Sys::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
        DataType::Int64 => Sys::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
        DataType::Fp16 => Sys::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
        DataType::Fp32 => Sys::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
        DataType::Fp64 => Sys::ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,
        DataType::Bytes => Sys::ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING,
        DataType::Bf16 => Sys::ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16,
    }
}
