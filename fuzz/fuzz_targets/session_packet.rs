//! Can any packet make the readers of the session protocol panic, or read a message that is not written back as it was read?
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use nerite_request::TraceContext;
use nerite_wire::proto::session::{encode_answer, read_answer, read_call, v1};
use nerite_wire::proto::{Chain, ExpectedResponse, InferMessage};

fuzz_target!(|packet: &[u8]| {
    let packet = Bytes::copy_from_slice(packet);
    if let Ok(answer) = read_answer(packet.clone()) {
        assert_eq!(read_answer(encode_answer(&answer)), Ok(answer.clone()));
        if let Some(v1::server_message::Answer::Answers(answers)) = answer.answer {
            answers.messages.into_iter().for_each(|message| drop(read_answer(message)));
        }
    }
    let Ok(call) = read_call(packet) else { return };
    let infer = match call.call {
        Some(v1::client_message::Call::Infer(infer)) => infer,
        Some(v1::client_message::Call::Prepare(prepare)) => {
            let _ = ExpectedResponse::read(prepare.expected);
            prepare.infer.unwrap_or_default()
        }
        Some(v1::client_message::Call::CallPrepared(call)) => return read_trace(call.trace),
        _ => return,
    };
    read_trace(infer.trace);
    if let Ok(mut message) = InferMessage::read(&Chain::from(infer.request)) {
        let _ = message.take_infer_request(|_| Ok(()));
    }
});

/// A context that is read has a header that is read as the same one.
fn read_trace(trace: Option<Box<v1::TraceContext>>) {
    let Some(trace) = trace else { return };
    let Some(read) = TraceContext::read(&trace.trace_parent, Some(&trace.trace_state)) else { return };
    assert_eq!(TraceContext::read(read.traceparent().as_bytes(), Some(read.state.as_bytes())), Some(read));
}
