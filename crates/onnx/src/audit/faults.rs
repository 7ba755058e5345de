//! Which operators does this version of the engine get wrong?
//!
//! Found by ONNX's own operator tests (`cargo run -p nerite-onnx --example oracle`); to be asked again with every new version.

use rten_onnx::onnx::{DataType as Onnx, NodeProto};

/// What is wrong with this operator's results, if anything is. `input` is the type of its first input.
pub fn fault(node: &NodeProto, op: &str, input: Option<Onnx>) -> Option<&'static str> {
    let text = |name: &str| {
        let attribute = node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some(name));
        attribute.and_then(|attribute| attribute.s.as_deref())
    };
    match op {
        "Sign" if input != Some(Onnx::INT32) && input != Some(Onnx::INT64) => Some("would be 1 for zero in the engine"),
        "Resize" if text("mode") == Some("cubic") => Some("would interpolate linearly in the engine, not cubically"),
        "NonMaxSuppression" => Some("would measure overlap otherwise in the engine, and not for each class"),
        "SequenceInsert" if node.input.len() > 2 => Some("would insert elsewhere in the engine"),
        _ => None,
    }
}
