//! Can any message, cut anywhere into frames, make the reader of gRPC inference requests panic or read otherwise?
//!
//! The first byte says how long the frames are.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use nerite_wire::proto::{Chain, InferMessage};

fuzz_target!(|message: &[u8]| {
    let Some((&frame, message)) = message.split_first() else { return };
    let summary_of = |frame: usize| {
        let mut chain = Chain::new();
        for piece in message.chunks(frame.max(1)) {
            chain.push(Bytes::copy_from_slice(piece));
        }
        let mut read = InferMessage::read(&chain).ok()?;
        Some(read.take_infer_request(|_| Ok(())).map(|request| (request.model.clone(), request.id.clone(), request.inputs.len(), request.outputs.len())).map_err(|e| e.message))
    };
    assert_eq!(summary_of(usize::from(frame)), summary_of(message.len()));
});
