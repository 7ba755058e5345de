//! How do the pieces of a graph share its weights?
//!
//! Several pieces may read the same constant. So the bytes of large constants are moved out of the graph, one after the other, to one place. For the
//! engine this place is a file of data beside the model's. Each piece refers to it, and the engine's tensors are views of it. Numbers that the engine
//! keeps in another type (INT64, BOOL, FP64, FP16) stay in the graph, because each piece has them converted.

use rten_onnx::onnx::{DataLocation, DataType as Onnx, GraphProto, StringStringEntryProto, TensorProto};

/// The name of the place, as of a file. The engine requires this ending.
pub const FILE: &str = "pieces.data";

/// Smaller constants stay in the graph.
const SHARED_BYTES_MIN: usize = 1024;

/// Each constant starts at a multiple of this number of bytes, as any number needs it.
const ALIGNMENT: usize = 16;

/// Moves the bytes of large constants out of the graph, which must have no constants in other files. Returns them in one
/// piece; none if there is no memory for it, and then the graph is as before.
pub fn take(graph: &mut GraphProto) -> Vec<u8> {
    let mut total = 0usize;
    each(graph, &mut |constant| {
        total = total.saturating_add(shared_len(constant).map_or(0, |len| len.next_multiple_of(ALIGNMENT)));
    });
    let mut all = Vec::new();
    if all.try_reserve_exact(total).is_ok() {
        each(graph, &mut |constant| take_one(constant, &mut all));
    }
    all
}

/// How many bytes the engine keeps for the constants of a graph: one for each number of INT8 and UINT8, and four for each other number, whatever type
/// the file has. Constants that were moved to the shared place are not counted.
pub fn engine_bytes(graph: &mut GraphProto) -> u64 {
    let mut total = 0u64;
    each(graph, &mut |constant| {
        let is_moved = constant.external_data.iter().any(|entry| entry.value.as_deref() == Some(FILE));
        let number = if matches!(constant.data_type, Some(Onnx::INT8 | Onnx::UINT8)) { 1u64 } else { 4 };
        let dims = constant.dims.iter().map(|dim| u64::try_from(*dim).unwrap_or(0));
        let bytes = dims.fold(number, u64::saturating_mul);
        total = total.saturating_add(if is_moved { 0 } else { bytes });
    });
    total
}

fn take_one(constant: &mut TensorProto, all: &mut Vec<u8>) {
    if shared_len(constant).is_none() {
        return;
    }
    let Some(raw) = constant.raw_data.take() else { return };
    let raw = raw.into_inner();
    let entry = |key: &str, value: String| StringStringEntryProto { key: Some(key.to_owned()), value: Some(value) };
    constant.data_location = Some(DataLocation::EXTERNAL);
    constant.external_data = vec![
        entry("location", FILE.to_owned()),
        entry("offset", all.len().to_string()),
        entry("length", raw.len().to_string()),
    ];
    all.extend_from_slice(&raw);
    all.resize(all.len().next_multiple_of(ALIGNMENT), 0);
}

/// The number of bytes of a constant that can be shared.
fn shared_len(constant: &TensorProto) -> Option<usize> {
    let is_kept_as_it_is = matches!(constant.data_type, Some(Onnx::FLOAT | Onnx::INT32 | Onnx::INT8 | Onnx::UINT8));
    let len = constant.raw_data.as_ref()?.borrow().len();
    (is_kept_as_it_is && len >= SHARED_BYTES_MIN).then_some(len)
}

fn each(graph: &mut GraphProto, then: &mut dyn FnMut(&mut TensorProto)) {
    graph.initializer.iter_mut().for_each(&mut *then);
    for node in &mut graph.node {
        let is_constant = node.op_type.as_deref() == Some("Constant");
        for attribute in &mut node.attribute {
            attribute.t.as_mut().filter(|_| is_constant).into_iter().for_each(&mut *then);
            if let Some(inner) = &mut attribute.g {
                each(inner, then);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn constant(name: &str, onnx: Onnx, bytes: Vec<u8>) -> TensorProto {
        let raw_data = Some(RefCell::new(bytes));
        TensorProto { name: Some(name.into()), data_type: Some(onnx), raw_data, ..TensorProto::default() }
    }

    #[test]
    fn large_constants_move_to_one_place_and_others_stay() {
        let initializer = vec![
            constant("a", Onnx::FLOAT, vec![1; 1028]),
            constant("small", Onnx::FLOAT, vec![2; 8]),
            constant("converted", Onnx::INT64, vec![3; 2048]),
            constant("b", Onnx::UINT8, vec![4; 1024]),
        ];
        let mut graph = GraphProto { initializer, ..GraphProto::default() };
        for (constant, dim) in graph.initializer.iter_mut().zip([257, 2, 256, 1024]) {
            constant.dims = vec![dim];
        }
        assert_eq!(engine_bytes(&mut graph), 1028 + 8 + 1024 + 1024, "the engine keeps INT64 in 32 bits");
        let all = take(&mut graph);
        assert_eq!(engine_bytes(&mut graph), 8 + 1024);
        assert_eq!((all.len(), all.get(1027..1041)), (2064, Some(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4][..])));
        let summary = |constant: &TensorProto| {
            let values: Vec<&str> = constant.external_data.iter().filter_map(|one| one.value.as_deref()).collect();
            (constant.raw_data.as_ref().map_or(0, |raw| raw.borrow().len()), values.join(" "))
        };
        let expect = [(0, "pieces.data 0 1028"), (8, ""), (2048, ""), (0, "pieces.data 1040 1024")];
        let shown: Vec<(usize, String)> = graph.initializer.iter().map(summary).collect();
        assert_eq!(shown, expect.map(|(len, summary)| (len, summary.to_owned())));
    }
}
