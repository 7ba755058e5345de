//! What do the other model and the process get for a nested request?

use std::collections::HashMap;
use std::process::Command;
use std::sync::{Arc, PoisonError, Weak, mpsc};

use nerite_backend::{Infer, Models, Times};
use nerite_request::{InferResponse, Recycled};
use nerite_shm::{LeaseLimits, Pools};
use nerite_tensor::{DataType, Shape};
use serde_json::{Value, json};

use super::*;
use crate::blocks::Blocks;
use crate::calls::Process;
use crate::channel::{Channel, Packet};
use crate::os_process::OsProcess;
use crate::packets::{Call, CallSaid};
use crate::plan::tests::{job, plan, wanted};
use crate::shares::Shares;
use crate::supervisor::Side;
use crate::waits::Waits;

/// Other models, which answer when the test does. `absent` does not exist, `many` is decoupled.
#[derive(Default)]
struct Other(std::sync::Mutex<Vec<Request>>);

impl Other {
    fn take(&self) -> Request {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap()
    }
}

impl Infer for Other {
    fn infer(&self, _: &str, _: Option<i64>, request: Request) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(request);
    }

    fn config(&self, model: &str, _: Option<i64>) -> Result<Arc<nerite_config::ModelConfig>, Status> {
        if model == "absent" {
            return Err(Status::not_found("absent"));
        }
        let mut config = nerite_config::ModelConfig::default();
        config.model_transaction_policy.get_or_insert_default().decoupled = model == "many";
        Ok(Arc::new(config))
    }
}

/// Both ends of a process's channel for calls. The test plays the process.
struct Pair {
    calls: Arc<Calls>,
    theirs: Channel,
    other: Arc<Other>,
}

/// The process's model is called `asker`, and has one instance.
fn pair() -> Pair {
    let (ours, theirs) = Channel::pair().unwrap();
    let (side, _) = Side::pair().unwrap();
    let other = Arc::new(Other::default());
    let weak: Weak<dyn Infer> = Arc::downgrade(&(Arc::clone(&other) as Arc<dyn Infer>));
    let waiter = Arc::new(Arc::new(Waits::default()).instance("asker"));
    // No process maps memory in this test.
    let channel = Arc::new(Channel::pair().unwrap().0);
    let process = Process {
        instance: "asker_0".to_owned(),
        unhealthy: Box::new(str::to_owned),
        shares: Shares::new(channel, true),
        blocks: Arc::new(Blocks::new(&Pools::new(LeaseLimits::default()))),
        side,
        os_process: Arc::new(OsProcess::new(Command::new("true").spawn().unwrap())),
        output: None,
        counts_responses: false,
        callees: Callees { models: Models::of(weak), waiter },
    };
    Pair {
        calls: Calls::new(ours, process, crate::plan::Sizes::default()).unwrap(),
        theirs: Channel::from(theirs),
        other,
    }
}

impl Pair {
    /// The next packet for the process; null if there is none.
    fn received(&self) -> Value {
        self.theirs.set_receive_timeout(Some(std::time::Duration::from_millis(20))).unwrap();
        let mut packet = Packet::default();
        let text = self.theirs.receive(&mut packet).ok().flatten();
        text.map_or(Value::Null, |text| serde_json::from_slice(text).unwrap())
    }

    fn send(&self, call: u64, model: &str, inputs: Value, more: Value) {
        let mut infer = json!({
            "model": model, "version": -1, "id": "mine", "correlation": 0, "flags": 0, "timeout": 5, "parameters": {},
            "inputs": inputs, "wanted": ["OUT"], "decoupled": false, "waits": false,
        });
        infer.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let said = CallSaid::read(json!({ "call": call, "infer": infer }).to_string().as_bytes()).unwrap();
        let Some(Call::Infer(call_read)) = said.call() else { panic!("a request") };
        self.calls.infer(call, call_read);
    }

    #[track_caller]
    fn check_refused(&self, model: &str, more: Value, words: &str) {
        self.send(3, model, json!([]), more);
        let received = self.received();
        assert_eq!((&received["call"], &received["final"]), (&json!(3), &json!(true)));
        let text = received["response"]["error"][1].as_str().unwrap().to_owned();
        assert!(text.starts_with(&format!("Model {model} - Error when running inference: ")), "{text}");
        assert!(text.contains(words), "{text}");
    }
}

fn output(bytes: &[u8]) -> Recycled<InferResponse> {
    let data = Buffer::from(bytes.to_vec());
    let shape = Shape::from_slice(&[bytes.len() as i64]);
    let output = Output { index: 0, name: "OUT".into(), datatype: DataType::Uint8, shape, data, placed: false };
    InferResponse { outputs: vec![output].into(), ..InferResponse::default() }.into()
}

#[test]
fn a_request_takes_its_inputs_along_and_its_answer_lies_in_the_process_memory() {
    let pair = pair();
    pair.calls.space(1, 100);
    let place = pair.received();
    let segment = place["at"][0].as_u64().unwrap();
    assert_eq!((&place["call"], &place["map"][0][0]), (&json!(1), &json!(segment)));
    pair.send(2, "other", json!([["IN", "UINT8", [4], segment, 8, 4], ["NONE", "FP32", [0], null, 0, 0]]), json!({}));
    let mut request = pair.other.take();
    assert_eq!((&*request.id, request.timeout_us, &*request.wanted[0].name), ("mine", 5, "OUT"));
    let sizes: Vec<usize> = request.inputs.iter().map(|input| input.data.len()).collect();
    assert_eq!(sizes, [4, 0]);
    let window = request.inputs[0].data.share().unwrap();
    assert_eq!((window.share.mark().number(), window.offset), (segment, 8));
    request.reply.send(Response::Final(output(&[1, 2, 3])));
    let received = pair.received();
    let tensor = &received["response"]["outputs"][0];
    assert_eq!(
        (&received["call"], &received["final"], &tensor[0], &tensor[5]),
        (&json!(2), &json!(true), &json!("OUT"), &json!(3))
    );
    let lies_in = tensor[3].as_u64().unwrap();
    assert_eq!(received["own"], json!([lies_in]));
    let kept = pair.calls.process.side.kept_buffer(lies_in).unwrap().to_private(Reason::Model);
    assert_eq!(&kept.private_bytes().unwrap()[..3], [1, 2, 3]);
}

/// The numbers come from a model's code, so they may be wrong.
#[test]
fn an_input_elsewhere_than_in_memory_of_the_process_is_not_found() {
    let pair = pair();
    pair.calls.space(1, 100);
    let segment = pair.received()["at"][0].as_u64().unwrap();
    let nowhere =
        [(segment + 1_u64, 0, 4), (segment, 0_u64, 1_u64 << 40), (segment, 1 << 40, 4), (0, 0, 4), (u64::MAX, 0, 4)];
    for (segment, offset, bytes) in nowhere {
        pair.send(2, "other", json!([["IN", "UINT8", [4], segment, offset, bytes]]), json!({}));
        assert_eq!(pair.received(), json!({ "call": 2, "unknown": true }), "{segment} {offset} {bytes}");
    }
    for nonsense in
        [json!([1]), json!([["IN", "UINT7", [4], segment, 0, 4]]), json!([["IN", "UINT8", "4", segment, 0, 4]])]
    {
        pair.send(2, "other", nonsense, json!({}));
        assert_eq!(pair.received(), json!({ "call": 2, "unknown": true }));
    }
    assert!(pair.other.0.lock().unwrap().is_empty());
}

#[test]
fn an_invalid_nested_request_is_refused_with_tritons_text() {
    let pair = pair();
    pair.check_refused("absent", json!({}), "Error when running inference: absent");
    pair.check_refused("many", json!({}), "doesn't support models using the decoupled transaction policy");
    pair.check_refused("asker", json!({ "waits": true }), "model 'asker' waits for itself");
    // No refused request still counts as waiting.
    pair.send(4, "other", json!([]), json!({ "waits": true }));
    pair.other.take().reply.send(Response::Final(output(&[7])));
    assert_eq!(pair.received()["final"], json!(true));
}

#[test]
fn a_request_that_comes_to_be_waited_for_ends_if_no_answer_can_come() {
    let pair = pair();
    let wait_for =
        |call: u64| pair.calls.handle(&CallSaid::read(json!({ "waits": call }).to_string().as_bytes()).unwrap());
    // A thread of the model sends the request, and the instance does not wait for it.
    pair.send(3, "asker", json!([]), json!({}));
    assert_eq!(pair.received(), Value::Null);
    wait_for(9);
    wait_for(3);
    let received = pair.received();
    assert_eq!((&received["call"], &received["final"]), (&json!(3), &json!(true)));
    assert!(received["response"]["error"][1].as_str().unwrap().contains("model 'asker' waits for itself"));
    let mut late = pair.other.take();
    assert!(late.cancel.is_cancelled());
    late.reply.send(Response::Final(output(&[7])));
    assert_eq!(pair.received(), Value::Null, "it was answered already");
    // The instance waits for an answer that is possible, until it has arrived.
    pair.send(4, "other", json!([]), json!({}));
    wait_for(4);
    pair.other.take().reply.send(Response::Final(output(&[7])));
    assert_eq!(pair.received()["call"], json!(4));
    pair.calls.process.callees.waiter.end_all();
}

#[test]
fn a_request_for_one_response_gets_one() {
    let pair = pair();
    pair.send(2, "other", json!([]), json!({}));
    let mut request = pair.other.take();
    request.reply.send(Response::Part(output(&[1])));
    assert_eq!(pair.received(), Value::Null, "it may not be the only one");
    request.reply.send(Response::Final(output(&[2])));
    assert_eq!(pair.received()["response"]["error"], json!(["INTERNAL", "expected a single response, got 2"]));
    pair.send(3, "other", json!([]), json!({}));
    pair.other.take().reply.refuse(Status::invalid("no such input"));
    let error = &pair.received()["response"]["error"];
    assert_eq!(error, &json!(["INTERNAL", "Model other - Error when running inference: no such input"]));
}

#[test]
fn responses_that_the_model_has_not_taken_fill_the_window() {
    let pair = pair();
    pair.send(2, "many", json!([]), json!({ "decoupled": true }));
    let mut request = pair.other.take();
    let window = request.reply.window().unwrap();
    let mut sent = 0;
    while !window.on_room(|| ()) {
        request.reply.send(Response::Part(output(&[1])));
        assert_eq!(pair.received()["final"], json!(false));
        sent += 1;
        assert!(sent < 1000, "it is never full");
    }
    pair.calls.taken(99);
    assert!(window.on_room(|| ()), "nobody took one");
    pair.calls.taken(2);
    assert!(!window.on_room(|| ()), "there is room for one");
    request.reply.send(Response::End);
    let end = pair.received();
    assert!(end["final"] == json!(true) && end.get("response").is_none(), "{end}");
    pair.calls.taken(2);
}

#[test]
fn nested_requests_that_are_not_needed_any_more_are_cancelled() {
    let pair = pair();
    pair.send(2, "many", json!([]), json!({ "decoupled": true }));
    pair.send(3, "other", json!([]), json!({ "waits": true }));
    let (waited_for, mut streamed) = (pair.other.take(), pair.other.take());
    pair.calls.cancel(99);
    assert!(!streamed.cancel.is_cancelled() && !waited_for.cancel.is_cancelled());
    streamed.reply.send(Response::Part(output(&[1])));
    pair.calls.cancel(2);
    assert!(streamed.cancel.is_cancelled() && !waited_for.cancel.is_cancelled());
    pair.calls.cancel_all();
    assert!(waited_for.cancel.is_cancelled());
}

#[test]
fn responses_that_were_sent_before_the_process_ended_come_before_the_error() {
    for is_handling in [false, true] {
        let pair = pair();
        let (to, responses) = mpsc::channel();
        let job = job(Vec::new(), vec![wanted("x", None)], Reply::new(move |response| drop(to.send(response))));
        let (planned, ..) = plan(job, &pair.calls.process.shares, &pair.calls.process.blocks, &HashMap::new());
        let begun = pair.calls.begin(vec![planned], Times::begin(), || Ok(true));
        assert_eq!(begun.ok(), Some(vec![3]));
        let response = json!({ "outputs": [["x", "INT8", [0], null, 0, 0]] });
        let sent = json!({ "call": 1, "respond": 3, "response": response, "final": false });
        // The process ends before it reads this.
        pair.calls.channel.send("{}", &[]).unwrap();
        pair.theirs.send(sent.to_string(), &[]).unwrap();
        let Pair { calls, theirs, .. } = pair;
        drop(theirs);
        if is_handling {
            // Another thread handles a packet when the process ends, and does the rest.
            let reading = lock(&calls.reading);
            calls.end_all(Status::internal("it ended"));
            assert!(responses.try_recv().is_err());
            drop(reading);
            let news = std::mem::take(&mut *lock(&calls.news));
            for news in news {
                calls.obey(news);
            }
        } else {
            calls.end_all(Status::internal("it ended"));
        }
        let all: Vec<Response> = responses.try_iter().collect();
        let [Response::Part(first), Response::Failed { error, more: false, .. }] = &all[..] else {
            panic!("a response and an error: {all:?}")
        };
        assert_eq!((&*first.outputs[0].name, &*error.message), ("x", "it ended"));
    }
}

/// A model's code can write to the channel, and some numbers of Python are not valid in JSON. A thread of the model waits for the answer.
#[test]
fn a_call_that_cannot_be_read_is_answered_and_without_a_number_it_ends_the_process() {
    let pair = pair();
    let mut packet = Packet::default();
    let mut send = |text: &str| {
        pair.theirs.send(text, &[]).unwrap();
        assert!(pair.calls.receive(&mut packet).unwrap());
        pair.received()
    };
    for (text, why) in [
        (r#"{"call":7,"infer":{"parameters":{"a":NaN}}}"#, "the server cannot read the call: expected value at line 1"),
        (r#"{"call":7,"load":["a"]}"#, "the server does not know the call, or a part of it is invalid"),
        (r#"{"call":7,"nothing":1}"#, "the server does not know the call, or a part of it is invalid"),
    ] {
        let received = send(text);
        assert_eq!(received["call"], json!(7), "{text}");
        assert!(received["error"].as_str().unwrap().starts_with(why), "{text}: {received}");
    }
    assert_eq!(send(r#"{"taken":1}"#), Value::Null);
    assert_eq!(pair.calls.process.os_process.killed_because(), None);
    for text in [r#"{"call":7"#, r#"{"call":,}"#, r#"{"call":99999999999999999999,NaN}"#, "nonsense"] {
        let pair = self::pair();
        pair.theirs.send(text, &[]).unwrap();
        assert!(pair.calls.receive(&mut Packet::default()).unwrap());
        let why = pair.calls.process.os_process.killed_because();
        assert!(why.is_some_and(|why| why.contains("a packet that the server cannot read")), "{text}: {why:?}");
    }
}
