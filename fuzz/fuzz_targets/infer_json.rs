//! Can any body make the reader of HTTP inference requests panic or reach outside it?
//!
//! The first two bytes say where the JSON part ends and the binary tensors begin.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nerite_memory::Buffer;
use nerite_request::Source;
use nerite_request::limits::TensorsMax;
use nerite_wire::json::{InferText, read_infer};

fuzz_target!(|body: &[u8]| {
    let Some((cut, body)) = body.split_first_chunk::<2>() else { return };
    let cut = usize::from(u16::from_le_bytes(*cut)).min(body.len());
    let (json, tail) = body.split_at(cut);
    let tail = Buffer::from(tail.to_vec());
    let text = InferText { json, tail: &tail, model: "m", version: "", bytes_max: 1 << 20, tensors_max: TensorsMax::default() };
    let Ok((request, _)) = read_infer(&text) else { return };
    for input in &request.inputs {
        if let Source::Inline(data) = &input.source {
            assert!(data.to_private(nerite_memory::Reason::Model).private_bytes().is_some());
        }
    }
});
