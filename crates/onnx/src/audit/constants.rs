//! Which constants does a 32-bit engine keep as they are?

use rten_onnx::onnx::{AttributeProto, DataLocation, DataType as Onnx, GraphProto, NodeProto, TensorProto};

use super::magnitude::{Magnitude, MagnitudeBounds};
use super::{Fact, UNKNOWN};

/// INT64 constants up to this size may be used in arithmetic: sizes of tensors are multiplied by them and added to
/// them.
const SMALL_MAX: u64 = 1 << 16;

/// Checks a constant of the graph.
pub fn examine(
    constant: &TensorProto,
    name: &str,
    graph: &GraphProto,
    bounds: &mut MagnitudeBounds,
) -> Result<Fact, String> {
    match constant.data_type {
        Some(Onnx::INT64) => return examine_integers(&integers(constant, name)?, name, graph, bounds),
        Some(Onnx::DOUBLE) => examine_doubles(&doubles(constant, name)?, name)?,
        _ => {}
    }
    Ok(Fact { onnx: constant.data_type, small: true, bound: None })
}

/// Checks a `Constant` operator.
pub fn of_node(node: &NodeProto, graph: &GraphProto, bounds: &mut MagnitudeBounds) -> Result<Fact, String> {
    let name = node.output.first().map(String::as_str).unwrap_or_default();
    let Some(value) = node.attribute.first() else { return Ok(UNKNOWN) };
    if let Some(tensor) = &value.t {
        return examine(tensor, name, graph, bounds);
    }
    let list: Vec<i64> = value.i.into_iter().chain(value.ints.iter().copied()).collect();
    if list.is_empty() {
        return Ok(Fact { onnx: Some(Onnx::FLOAT), small: true, bound: None });
    }
    examine_integers(&list, name, graph, bounds)
}

/// Checks the tensors among an operator's attributes, such as the value of ConstantOfShape.
pub fn check_attributes(node: &NodeProto, graph: &GraphProto) -> Result<(), String> {
    let tensors = node.attribute.iter().filter_map(|attribute: &AttributeProto| attribute.t.as_ref());
    for tensor in tensors {
        examine(
            tensor,
            node.output.first().map(String::as_str).unwrap_or_default(),
            graph,
            &mut MagnitudeBounds::default(),
        )?;
    }
    Ok(())
}

fn examine_integers(
    values: &[i64],
    name: &str,
    graph: &GraphProto,
    bounds: &mut MagnitudeBounds,
) -> Result<Fact, String> {
    let beyond = values.iter().find(|value| i32::try_from(**value).is_err());
    if let Some(value) = beyond.filter(|_| !only_bounds_slices(name, graph)) {
        return Err(format!(
            "the INT64 constant '{name}' holds {value}, which does not fit the 32 bits that the engine keeps"
        ));
    }
    let largest = values.iter().map(|value| value.unsigned_abs()).max().unwrap_or_default();
    let followed = beyond.is_none().then(|| bounds.note(Magnitude::Constant(largest)));
    Ok(Fact { onnx: Some(Onnx::INT64), small: largest <= SMALL_MAX, bound: followed })
}

fn examine_doubles(values: &[f64], name: &str) -> Result<(), String> {
    match values.iter().find(|value| !crate::convert::is_fp32(**value)) {
        Some(value) => Err(format!(
            "the FP64 constant '{name}' holds {value}, which is no FP32, and that is what the engine keeps"
        )),
        None => Ok(()),
    }
}

/// Whether a constant is only used as the start or end of slices. There a value beyond every size means the same after saturation to 32 bits.
fn only_bounds_slices(name: &str, graph: &GraphProto) -> bool {
    let mut uses = graph.node.iter().flat_map(|node| node.input.iter().enumerate().map(move |use_| (node, use_)));
    let bounds = |node: &NodeProto, at: usize| node.op_type.as_deref() == Some("Slice") && (at == 1 || at == 2);
    // Inner graphs can use outer names. Whether they use this one is not searched.
    let has_inner = graph.node.iter().any(|node| node.attribute.iter().any(|attribute| attribute.g.is_some()));
    let is_output = graph.output.iter().any(|output| output.name.as_deref() == Some(name));
    !has_inner && !is_output && uses.all(|(node, (at, input))| input != name || bounds(node, at))
}

fn integers(constant: &TensorProto, name: &str) -> Result<Vec<i64>, String> {
    let Some(words) = words(constant, name)? else { return Ok(constant.int64_data.clone()) };
    Ok(words.into_iter().map(i64::from_le_bytes).collect())
}

fn doubles(constant: &TensorProto, name: &str) -> Result<Vec<f64>, String> {
    let Some(words) = words(constant, name)? else { return Ok(constant.double_data.clone()) };
    Ok(words.into_iter().map(f64::from_le_bytes).collect())
}

/// The raw words of a constant of eight-byte numbers; `None` if it has them in a list of their own.
fn words(constant: &TensorProto, name: &str) -> Result<Option<Vec<[u8; 8]>>, String> {
    if constant.data_location == Some(DataLocation::EXTERNAL) {
        return Err(format!(
            "the constant '{name}' of 64-bit numbers lies in a file of its own, where it is not checked"
        ));
    }
    let Some(raw) = &constant.raw_data else { return Ok(None) };
    let raw = raw.borrow();
    let words = raw.chunks_exact(8).map(|word| <[u8; 8]>::try_from(word).unwrap_or_default());
    Ok(Some(words.collect()))
}
