//! Which thread takes the steps of a response that are much work?

use std::collections::BTreeMap;
use std::thread::{self, ThreadId};

use nerite_api::{Admission, Target};
use nerite_request::limits::TensorsMax;
use nerite_request::{Cancel, InferRequest, Recycled, Response, Status};
use nerite_wire::proto::messages::infer_parameter::ParameterChoice;
use nerite_wire::proto::messages::model_infer_request::InferRequestedOutputTensor;
use nerite_wire::proto::messages::{InferParameter, ModelInferRequest};
use nerite_wire::proto::{Chain, InferMessage, Malformed};
use prost::Message as _;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::peer;
use crate::test_server::TestServer;

/// More elements than a front thread may turn into classes.
const MANY: usize = 300_000;
const FEW: usize = 3000;
/// Requests at a time.
const HELD: usize = 1;

/// A request whose output is turned into this many classes. 0: it is the tensor.
fn request(model: &str, elements: usize, classes: i64) -> Recycled<InferRequest> {
    let number = |key: &str, value| {
        let parameter = InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(value)) };
        [(key.to_owned(), parameter)].into()
    };
    let parameters = if classes > 0 { number("classification", classes) } else { BTreeMap::new() };
    let outputs = vec![InferRequestedOutputTensor { name: "OUT".into(), parameters }];
    let message =
        ModelInferRequest { outputs, parameters: number("count", 4), ..peer::request(model, "last", elements) };
    let chain = Chain::from(bytes::Bytes::from(message.encode_to_vec()));
    let read = InferMessage::read_for(&chain, |_, _| Ok::<_, Malformed>(TensorsMax::default()));
    read.unwrap().take_infer_request(|_| Ok::<_, Status>(())).unwrap()
}

fn admitted(server: &TestServer, model: &str) -> Admission {
    server.api.accept(Target::of_any(model, "")).unwrap()
}

/// The thread of a response, and the datatype of its output. `None` for an end.
type Delivered = (ThreadId, Option<&'static str>);

fn noted(response: &Response) -> Delivered {
    let datatype = match response {
        Response::Part(tensors) | Response::Final(tensors) => Some(tensors.outputs[0].datatype.name()),
        Response::End => None,
        Response::Failed { error, .. } => panic!("{error:?}"),
    };
    (thread::current().id(), datatype)
}

#[expect(clippy::disallowed_methods, reason = "the test reads it at once")]
fn begin(server: &TestServer, model: &str, elements: usize, classes: i64) -> UnboundedReceiver<Delivered> {
    let (to, from) = unbounded_channel();
    let sink = move |response| to.send(noted(&response)).unwrap();
    server.api.infer_stream(admitted(server, model), request(model, elements, classes), Cancel::new(), sink).unwrap();
    from
}

/// Whether the thread that brings the response of this request also takes its steps.
async fn check(elements: usize, classes: i64, is_here: bool) {
    let server = TestServer::new();
    let mut from = begin(&server, "held", elements, classes);
    server.held.wait(HELD).await;
    server.held.answer("last");
    let datatype = if classes > 0 { "BYTES" } else { "FP32" };
    let (by, found) = from.recv().await.unwrap();
    assert_eq!(
        (by == thread::current().id(), found),
        (is_here, Some(datatype)),
        "{elements} elements, {classes} classes"
    );
}

#[tokio::test]
async fn whoever_brings_a_response_takes_the_steps_that_are_little_work() {
    check(FEW, 0, true).await;
    check(FEW, 5, true).await;
    check(FEW, FEW as i64, true).await;
    check(MANY, 0, true).await;
}

#[tokio::test]
async fn a_worker_takes_the_steps_that_are_much_work() {
    check(MANY, 1, false).await;
    check(2 * FEW, i64::MAX, false).await;
}

#[tokio::test]
async fn responses_that_wait_for_a_worker_keep_their_order() {
    let server = TestServer::new();
    let mut from = begin(&server, "repeat", MANY, 1);
    let mut found = Vec::new();
    while let Some((_, datatype)) = from.recv().await {
        found.push(datatype);
    }
    let classes = Some("BYTES");
    assert_eq!(found, [classes, classes, classes, classes, None]);
    // The worker drops the count after the sink.
    while server.api.under_way() > 0 {
        tokio::task::yield_now().await;
    }
}

/// Whether an output of that many elements is copied to a lease by the thread that brings it.
#[expect(clippy::disallowed_methods, reason = "the test reads it at once")]
async fn check_lease(elements: usize, is_here: bool) {
    let server = TestServer::new();
    let scope = server.api.open_scope();
    let (to, mut from) = unbounded_channel();
    let sink = move |response, leases: Vec<_>| to.send((noted(&response), leases)).unwrap();
    let (admission, request) = (admitted(&server, "held"), request("held", elements, 0));
    scope.infer(admission, request, vec!["OUT".to_owned()], None, Cancel::new(), sink).unwrap();
    server.held.wait(HELD).await;
    server.held.answer("last");
    let ((by, _), leases) = from.recv().await.unwrap();
    assert_eq!((by == thread::current().id(), leases.len()), (is_here, 1), "{elements} elements");
}

#[tokio::test]
async fn a_large_output_is_copied_to_its_lease_by_a_worker() {
    check_lease(FEW, true).await;
    check_lease(2 << 20, false).await;
}
