//! How does an initializer become an input that a request may leave out?
//!
//! The engine computes with its constants when it loads a graph. A request may replace the initializers that the
//! configuration lists. So they are taken out of the graph before anything uses their values: for the audit and for the
//! engine they are inputs like others. If a request leaves one out, the value in the file is used.

use nerite_memory::{Buffer, Slot};
use nerite_tensor::{Shape, Tensor, byte_size};
use rten_onnx::onnx::{DataLocation, DataType as Onnx, GraphProto, TensorProto};

use crate::spares::Spares;
use crate::{convert, graph};

/// Takes the initializers of these names out of the graph. Returns their values, or a clause that says why one cannot
/// be used.
pub fn take(graph: &mut GraphProto, names: &[String]) -> Result<Vec<Tensor>, String> {
    let is_named = |constant: &TensorProto| constant.name.as_ref().is_some_and(|name| names.contains(name));
    let (named, others): (Vec<_>, Vec<_>) = std::mem::take(&mut graph.initializer).into_iter().partition(is_named);
    graph.initializer = others;
    named.iter().map(value).collect()
}

fn value(constant: &TensorProto) -> Result<Tensor, String> {
    let name = constant.name.clone().unwrap_or_default();
    let fault = |why: String| format!("the initializer of input '{name}' {why}");
    if constant.data_location == Some(DataLocation::EXTERNAL) {
        return Err(fault("is kept in another file, and requests may replace it".to_owned()));
    }
    let datatype = constant.data_type.and_then(graph::datatype);
    let datatype = datatype.ok_or_else(|| fault("has no datatype that a request can carry".to_owned()))?;
    let shape = Shape::from_slice(&constant.dims);
    let data = bytes(constant).map_err(fault)?;
    let expected = byte_size(datatype, &shape).ok().flatten();
    if expected != Some(data.len()) {
        let shown = expected.map_or_else(|| "a number of its own".to_owned(), |bytes| bytes.to_string());
        return Err(fault(format!("has {} bytes, its shape {:?} wants {shown}", data.len(), &shape[..])));
    }
    let tensor = Tensor { name: name.as_str().into(), datatype, shape, data };
    // If the engine cannot represent a number, every request that leaves the input out would be refused.
    let refused = convert::to_engine(&tensor, &tensor.shape, &mut Spares::default()).err();
    refused.map_or(Ok(tensor), |status| Err(fault(format!("cannot be kept: {}", status.message))))
}

/// The numbers in the form of a request. If they are not raw, protobuf has them in a list of one of four types.
fn bytes(constant: &TensorProto) -> Result<Buffer, String> {
    if let Some(raw) = &constant.raw_data {
        return aligned(&raw.borrow());
    }
    Ok(match constant.data_type {
        Some(Onnx::FLOAT) => Buffer::from_numbers(constant.float_data.clone()),
        Some(Onnx::INT64) => Buffer::from_numbers(constant.int64_data.clone()),
        Some(Onnx::DOUBLE) => Buffer::from_numbers(constant.double_data.clone()),
        Some(Onnx::INT32) => Buffer::from_numbers(constant.int32_data.clone()),
        Some(Onnx::INT16 | Onnx::UINT16 | Onnx::FLOAT16 | Onnx::BFLOAT16) => {
            Buffer::from_numbers(constant.int32_data.iter().map(|number| *number as u16).collect::<Vec<_>>())
        }
        _ => Buffer::from_numbers(constant.int32_data.iter().map(|number| *number as u8).collect::<Vec<_>>()),
    })
}

/// The same bytes in memory that is aligned for every number.
fn aligned(raw: &[u8]) -> Result<Buffer, String> {
    let mut slot = Slot::try_heap(raw.len()).map_err(|refused| refused.to_string())?;
    if let Some(all) = slot.private_bytes_mut() {
        all.iter_mut().zip(raw).for_each(|(to, from)| *to = *from);
    }
    Ok(slot.filled().into_buffer())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use nerite_tensor::DataType;

    use super::*;

    fn constant(name: &str, onnx: Onnx, dims: &[i64]) -> TensorProto {
        TensorProto { name: Some(name.into()), data_type: Some(onnx), dims: dims.to_vec(), ..TensorProto::default() }
    }

    #[track_caller]
    fn check(constant: TensorProto, expect: Result<(DataType, Buffer), &str>) {
        let mut graph = GraphProto { initializer: vec![constant], ..GraphProto::default() };
        let taken = take(&mut graph, &["w".to_owned()]).map(|mut taken| taken.remove(0));
        match (taken, expect) {
            (Ok(tensor), Ok((datatype, data))) => {
                assert_eq!((tensor.datatype, tensor.data.private_bytes()), (datatype, data.private_bytes()));
                assert!(graph.initializer.is_empty(), "the graph keeps none");
            }
            (Err(why), Err(expect)) => assert_eq!(why, expect),
            (taken, _) => panic!("{taken:?}"),
        }
    }

    #[test]
    fn values_are_read_from_raw_bytes_and_from_lists() {
        let raw = |bytes: Vec<u8>| Some(RefCell::new(bytes));
        let floats: Vec<u8> = [1.5f32, -2.0, 3.0].iter().flat_map(|number| number.to_le_bytes()).collect();
        let expect = || Ok((DataType::Fp32, Buffer::from_numbers(vec![1.5f32, -2.0, 3.0])));
        check(TensorProto { raw_data: raw(floats), ..constant("w", Onnx::FLOAT, &[3]) }, expect());
        check(TensorProto { float_data: vec![1.5, -2.0, 3.0], ..constant("w", Onnx::FLOAT, &[3]) }, expect());
        check(
            TensorProto { int32_data: vec![1, 0], ..constant("w", Onnx::BOOL, &[2]) },
            Ok((DataType::Bool, Buffer::from_numbers(vec![1u8, 0]))),
        );
        check(
            TensorProto { int64_data: vec![-7], ..constant("w", Onnx::INT64, &[]) },
            Ok((DataType::Int64, Buffer::from_numbers(vec![-7i64]))),
        );
    }

    #[test]
    fn a_value_that_is_elsewhere_or_of_another_size_is_refused() {
        let outside = TensorProto { data_location: Some(DataLocation::EXTERNAL), ..constant("w", Onnx::FLOAT, &[1]) };
        check(outside, Err("the initializer of input 'w' is kept in another file, and requests may replace it"));
        check(
            TensorProto { float_data: vec![1.0], ..constant("w", Onnx::FLOAT, &[2]) },
            Err("the initializer of input 'w' has 4 bytes, its shape [2] wants 8"),
        );
    }

    #[test]
    fn other_constants_stay() {
        let mut graph = GraphProto { initializer: vec![constant("v", Onnx::FLOAT, &[0])], ..GraphProto::default() };
        assert_eq!(take(&mut graph, &["w".to_owned()]).map(|taken| taken.len()), Ok(0));
        assert_eq!(graph.initializer.len(), 1);
    }
}
