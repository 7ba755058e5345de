//! How are the attributes of a node read?

use nerite_backend_sdk::DataType;
use tract_tensorflow::tfpb::tensorflow::attr_value::Value;
use tract_tensorflow::tfpb::tensorflow::{DataType as Number, NodeDef, TensorProto, TensorShapeProto};

fn value<'n>(node: &'n NodeDef, name: &str) -> Option<&'n Value> {
    node.attr.get(name)?.value.as_ref()
}

/// An integer attribute.
pub fn int(node: &NodeDef, name: &str) -> Option<i64> {
    match value(node, name) {
        Some(Value::I(number)) => Some(*number),
        _ => None,
    }
}

/// A float attribute.
pub fn float(node: &NodeDef, name: &str) -> Option<f32> {
    match value(node, name) {
        Some(Value::F(number)) => Some(*number),
        _ => None,
    }
}

/// A boolean attribute. False if it is missing.
pub fn flag(node: &NodeDef, name: &str) -> bool {
    matches!(value(node, name), Some(Value::B(true)))
}

/// A string attribute. Empty if it is missing.
pub fn text<'n>(node: &'n NodeDef, name: &str) -> &'n [u8] {
    match value(node, name) {
        Some(Value::S(text)) => text,
        _ => b"",
    }
}

/// A list of integers. Empty if it is missing.
pub fn ints<'n>(node: &'n NodeDef, name: &str) -> &'n [i64] {
    match value(node, name) {
        Some(Value::List(list)) => &list.i,
        _ => &[],
    }
}

/// A tensor attribute.
pub fn tensor<'n>(node: &'n NodeDef, name: &str) -> Option<&'n TensorProto> {
    match value(node, name) {
        Some(Value::Tensor(tensor)) => Some(tensor),
        _ => None,
    }
}

/// A datatype attribute.
pub fn datatype(node: &NodeDef, name: &str) -> Result<DataType, String> {
    match value(node, name) {
        Some(Value::Type(number)) => of_number(*number),
        _ => Err(format!("it does not say its '{name}'")),
    }
}

/// A shape attribute. Unknown dimensions are `None`. The result is `None` if not even the rank is known.
pub fn shape(node: &NodeDef, name: &str) -> Option<Vec<Option<usize>>> {
    match value(node, name) {
        Some(Value::Shape(TensorShapeProto { dim, unknown_rank: false })) => {
            Some(dim.iter().map(|dim| usize::try_from(dim.size).ok()).collect())
        }
        _ => None,
    }
}

/// The datatype of this number in TensorFlow.
pub fn of_number(number: i32) -> Result<DataType, String> {
    let pairs = DataType::ALL.into_iter().filter_map(|known| Some((known, to_number(known)?)));
    let mut found = pairs.filter(|(_, its)| *its as i32 == number).map(|(known, _)| known);
    found.next().ok_or_else(|| {
        let name = Number::try_from(number).map_or("?", |known| known.as_str_name());
        format!("the datatype {name} ({number}) is not one of this engine")
    })
}

/// The number of this datatype in TensorFlow. `None` for BF16, which the engine lacks.
pub fn to_number(datatype: DataType) -> Option<Number> {
    Some(match datatype {
        DataType::Bool => Number::DtBool,
        DataType::Uint8 => Number::DtUint8,
        DataType::Uint16 => Number::DtUint16,
        DataType::Uint32 => Number::DtUint32,
        DataType::Uint64 => Number::DtUint64,
        DataType::Int8 => Number::DtInt8,
        DataType::Int16 => Number::DtInt16,
        DataType::Int32 => Number::DtInt32,
        DataType::Int64 => Number::DtInt64,
        DataType::Fp16 => Number::DtHalf,
        DataType::Fp32 => Number::DtFloat,
        DataType::Fp64 => Number::DtDouble,
        DataType::Bytes => Number::DtString,
        DataType::Bf16 => return None,
    })
}
