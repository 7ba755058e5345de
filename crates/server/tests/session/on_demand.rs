//! Do sessions load models by their requests, and go on meanwhile?

use std::time::Duration;

use nerite_budget::limits::STALL_MS;
use nerite_budget::{Budgets, Limits};
use nerite_client::{DataType, Lease, Parameter, Request, Session, Tensor};
use nerite_listen::BodyReadLimit;
use nerite_wire::proto::messages as proto;
use nerite_wire::proto::session::v1;
use prost::Message as _;
use v1::client_message::Call;
use v1::server_message::Answer;

use crate::hostile::Raw;
use crate::test_server::TestServer;

fn echo(lease: &Lease, model: &str) -> Request {
    Request::new(model)
        .input_in_window("IN", DataType::Int32, &[16], lease.window(0, 64))
        .output_in_window("OUT", lease.window(64, 64))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_loaded_to_prepare_an_inference_and_again_when_it_has_left() {
    let server = TestServer::on_demand();
    let (http, _grpc) = server.clients();
    let session = Session::connect(&server.socket).await.unwrap();
    let lease = session.borrow(128).await.unwrap();
    let prepared = session.prepare(&echo(&lease, "echo")).await.unwrap();
    prepared.call().await.unwrap();
    http.unload_model("echo", false).await.unwrap();
    assert!(server.api.must_wait_for("echo"));
    // The client is told that it is stale, and prepares it anew by itself.
    prepared.call().await.unwrap();
    assert!(!server.api.must_wait_for("echo"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_loaded_to_be_described() {
    let server = TestServer::on_demand();
    let raw = Raw::welcomed(&server.socket);
    raw.call(5, Call::DescribeModel(v1::DescribeModel { name: "simple".into(), version: String::new() }));
    let answer = raw.answer().unwrap().answer;
    assert!(matches!(answer, Some(Answer::Described(_))), "{answer:?}");
}

/// An inference with one number.
fn infer(model: &str) -> v1::Infer {
    let input = proto::model_infer_request::InferInputTensor {
        name: "IN".into(),
        datatype: "INT32".into(),
        shape: vec![1],
        ..Default::default()
    };
    let request = proto::ModelInferRequest {
        model_name: model.into(),
        inputs: vec![input],
        raw_input_contents: vec![vec![7, 0, 0, 0].into()],
        ..Default::default()
    };
    v1::Infer { request: request.encode_to_vec().into(), leased_outputs: Vec::new(), trace: None }
}

/// The same with a timeout in microseconds.
fn infer_within(model: &str, timeout_us: i64) -> v1::Infer {
    let mut request = proto::ModelInferRequest::decode(infer(model).request).unwrap();
    let choice = proto::infer_parameter::ParameterChoice::Int64Param(timeout_us);
    request.parameters.insert("timeout".into(), proto::InferParameter { parameter_choice: Some(choice) });
    v1::Infer { request: request.encode_to_vec().into(), leased_outputs: Vec::new(), trace: None }
}

fn prepare(model: &str) -> Call {
    Call::Prepare(v1::Prepare { infer: Some(infer(model)), ..v1::Prepare::default() })
}

fn describe(model: &str) -> Call {
    Call::DescribeModel(v1::DescribeModel { name: model.into(), version: String::new() })
}

#[track_caller]
fn next(raw: &Raw, id: u64) -> Answer {
    let message = raw.answer().expect("the session is open");
    assert_eq!(message.id, id, "{message:?}");
    message.answer.expect("it has an answer")
}

/// Sessions that wait for the model `late`: one to infer, one to prepare, one to describe. A second call of each is answered meanwhile.
fn waiting(server: &TestServer) -> Vec<Raw> {
    let calls = [Call::Infer(infer("late")), prepare("late"), describe("late")];
    let begin = |call| {
        let raw = Raw::welcomed(&server.socket);
        raw.call(2, call);
        raw.call(3, Call::SessionStatus(v1::SessionStatus {}));
        assert!(matches!(next(&raw, 3), Answer::SessionReport(_)));
        raw
    };
    let sessions: Vec<Raw> = calls.into_iter().map(begin).collect();
    TestServer::until("those that wait", || count(server) == sessions.len());
    sessions
}

/// Requests that wait for a model.
fn count(server: &TestServer) -> usize {
    server.api.metrics_report().demand.unwrap().waiting as usize
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_waits_for_no_model() {
    let server = TestServer::on_demand();
    let sessions = waiting(&server);
    assert_eq!(server.pools.counts().sessions, 3);
    drop(sessions);
    TestServer::until("the end of the wait", || count(&server) == 0);
    TestServer::until("the end of the sessions", || server.pools.counts().sessions == 0);
    server.late.let_load();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_waits_for_no_model_also_while_the_budgets_are_used_up() {
    const BUDGET: usize = 100 << 20;
    let budgets = Budgets::new(Limits::new(0, Some(BUDGET as u64), Some(BUDGET as u64), None));
    let server = TestServer::on_demand_with(budgets);
    let raw = Raw::welcomed(&server.socket);
    raw.call(2, Call::Infer(infer("late")));
    TestServer::until("the wait", || count(&server) == 1);
    // Another connection holds nearly all, and reads its message alone.
    let _charge = server.api.account().charge(BUDGET / 100 * 95);
    let mut read_limit = BodyReadLimit::new(server.api.account());
    read_limit.ready(0).await.unwrap();
    // After this packet the session may not read.
    raw.call(3, Call::SessionStatus(v1::SessionStatus {}));
    assert!(matches!(next(&raw, 3), Answer::SessionReport(_)));
    drop(raw);
    let took = TestServer::until("the end of the wait", || count(&server) == 0);
    assert!(took < Duration::from_millis(STALL_MS / 2), "it took {took:?}");
    server.late.let_load();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_waits_for_no_model() {
    let server = TestServer::on_demand();
    let sessions = waiting(&server);
    let stopped = tokio::spawn(server.handle.stop());
    for session in &sessions {
        assert_eq!(session.refusal(), "model 'late' is not loaded yet, and the server stops");
        assert!(session.answer().is_none(), "it went on");
    }
    stopped.await.unwrap();
    server.late.let_load();
}

/// The load of `late` does not end before the test says so. So a request that waited for it would not either.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_for_a_model_is_refused_when_the_server_begins_to_stop() {
    const STOPPING: &str = "Server is stopping, scheduler for model has stopped accepting new inference requests";
    let server = TestServer::on_demand();
    let sessions = waiting(&server);
    let (http, grpc) = server.clients();
    let request = Request::new("late");
    let (over_http, over_grpc) = (http.infer(&request), grpc.infer(&request));
    let stop = async {
        while count(&server) < sessions.len() + 2 {
            tokio::task::yield_now().await;
        }
        server.api.begin_stopping();
    };
    let (over_http, over_grpc, ()) = tokio::join!(over_http, over_grpc, stop);
    for refused in [over_http.err(), over_grpc.err(), http.infer(&request).await.err()] {
        let refused = refused.expect("it is refused").to_string();
        assert!(refused.contains(STOPPING), "{refused}");
    }
    for session in &sessions {
        assert_eq!(session.refusal(), STOPPING);
    }
    assert_eq!(count(&server), 0);
    server.late.let_load();
}

/// The load of `late` does not end before the test says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_waits_for_a_model_until_its_timeout() {
    const TIMEOUT_US: i64 = 50_000;
    let server = TestServer::on_demand();
    let raw = Raw::welcomed(&server.socket);
    raw.call(2, Call::Infer(infer("late")));
    raw.call(3, Call::Infer(infer_within("late", TIMEOUT_US)));
    raw.call(4, Call::Infer(infer_within("late", i64::MAX)));
    let message = raw.answer().unwrap();
    let Some(Answer::Error(error)) = message.answer else { panic!("{message:?}") };
    assert_eq!((message.id, error.message.as_str()), (3, "Request timeout expired"));
    let (http, grpc) = server.clients();
    let request = Request::new("late").input(Tensor::from_slice("IN", &[1], &[7i32]).unwrap());
    let within = request.clone().parameter("timeout", Parameter::Int(TIMEOUT_US));
    for refused in [http.infer(&within).await.err(), grpc.infer(&within).await.err()] {
        let refused = refused.expect("it is refused").to_string();
        assert!(refused.contains("Request timeout expired"), "{refused}");
    }
    // The load goes on.
    assert_eq!(count(&server), 1);
    server.late.let_load();
    let long = request.parameter("timeout", Parameter::Int(60_000_000));
    http.infer(&long).await.unwrap();
    let ids: std::collections::BTreeSet<u64> = (0..2).map(|_| raw.answer().unwrap().id).collect();
    assert_eq!(ids, [2, 4].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_ends_a_session_that_waits_for_a_model() {
    let server = TestServer::on_demand();
    let _sessions = waiting(&server);
    let operator = Session::connect_as_operator(&server.socket).await.unwrap();
    for view in operator.inspect_sessions().await.unwrap() {
        if view.client.is_empty() {
            operator.end_session(view.number).await.unwrap();
        }
    }
    TestServer::until("the end of the wait", || count(&server) == 0);
    server.late.let_load();
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_go_out_while_a_call_waits_for_a_model() {
    let server = TestServer::on_demand();
    let raw = Raw::welcomed(&server.socket);
    // More than the socket takes, so that some wait for the client to read.
    let (count_of_all, numbers) = (60, 8000);
    let request = proto::ModelInferRequest {
        model_name: "echo".into(),
        inputs: vec![proto::model_infer_request::InferInputTensor {
            name: "IN".into(),
            datatype: "INT32".into(),
            shape: vec![numbers],
            ..Default::default()
        }],
        raw_input_contents: vec![vec![1; 4 * numbers as usize].into()],
        ..Default::default()
    };
    let request = request.encode_to_vec();
    for id in 0..count_of_all {
        let request = request.clone().into();
        raw.call(2 + id, Call::Infer(v1::Infer { request, leased_outputs: Vec::new(), trace: None }));
    }
    raw.call(1000, Call::DescribeModel(v1::DescribeModel { name: "late".into(), version: String::new() }));
    TestServer::until("the wait", || count(&server) == 1);
    for number in 0..count_of_all {
        let message = raw.answer().unwrap_or_else(|| panic!("answer {number} of {count_of_all} never came"));
        assert!(matches!(message.answer, Some(Answer::Inference(_))), "{message:?}");
    }
    assert_eq!(count(&server), 1);
    server.late.let_load();
    assert_eq!(raw.answer().unwrap().id, 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn later_packets_are_answered_while_calls_wait_for_a_model_and_those_of_the_model_in_their_order() {
    let server = TestServer::on_demand();
    let raw = Raw::welcomed(&server.socket);
    raw.call(2, describe("echo"));
    assert!(matches!(next(&raw, 2), Answer::Described(_)));
    raw.call(3, prepare("late"));
    raw.call(4, describe("late"));
    raw.call(5, prepare("late"));
    raw.call(6, Call::Infer(infer("late")));
    for id in 10..40 {
        raw.call(id, Call::Infer(infer("echo")));
        assert!(matches!(next(&raw, id), Answer::Inference(_)));
    }
    raw.call(40, prepare("echo"));
    assert!(matches!(next(&raw, 40), Answer::Prepared(v1::Prepared { handle: 1 })));
    raw.call(41, Call::Infer(infer("nobody")));
    assert!(matches!(next(&raw, 41), Answer::Error(_)));
    assert_eq!(count(&server), 1, "one load, whatever the number of calls");
    server.late.let_load();
    assert!(matches!(next(&raw, 3), Answer::Prepared(v1::Prepared { handle: 2 })));
    assert!(matches!(next(&raw, 4), Answer::Described(_)));
    assert!(matches!(next(&raw, 5), Answer::Prepared(v1::Prepared { handle: 3 })));
    assert!(matches!(next(&raw, 6), Answer::Inference(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inference_that_waits_for_a_model_can_be_cancelled_and_nobody_waits_then() {
    let server = TestServer::on_demand();
    let raw = Raw::welcomed(&server.socket);
    raw.call(2, Call::Infer(infer("late")));
    raw.call(3, Call::Infer(infer("late")));
    TestServer::until("the wait", || count(&server) == 1);
    for (at, id) in [2, 3].into_iter().enumerate() {
        raw.call(0, Call::Cancel(v1::Cancel { id }));
        assert!(matches!(next(&raw, id), Answer::Error(v1::Error { code: 1, .. })));
        TestServer::until("the end of the wait", || count(&server) == 1 - at);
    }
    // The ids are free again.
    raw.call(2, Call::Infer(infer("late")));
    server.late.let_load();
    assert!(matches!(next(&raw, 2), Answer::Inference(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_lets_so_many_calls_wait_only_and_the_others_of_its_client_go_on() {
    let server = TestServer::on_demand();
    let raw = Raw::welcomed(&server.socket);
    let most = nerite_session::limits::WAITING_CALLS_MAX as u64;
    for id in 1..=most {
        raw.call(id, if id % 2 == 0 { describe("late") } else { Call::Infer(infer("late")) });
    }
    for (id, call) in [(900, describe("late")), (901, prepare("late")), (902, Call::Infer(infer("late")))] {
        raw.call(id, call);
        let Answer::Error(error) = next(&raw, id) else { panic!("{id} waits") };
        assert!(error.message.contains("64 calls of this session wait for models"), "{}", error.message);
    }
    raw.call(903, Call::SessionStatus(v1::SessionStatus {}));
    let Answer::SessionReport(report) = next(&raw, 903) else { panic!("another answer") };
    assert_eq!(report.inferences, most as u32 / 2, "the refused one is not in flight");
    server.late.let_load();
    let mut answered: Vec<u64> = (0..most).map(|_| raw.answer().unwrap().id).collect();
    answered.sort_unstable();
    assert_eq!(answered, (1..=most).collect::<Vec<_>>());
}
