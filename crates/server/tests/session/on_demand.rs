//! Do sessions load models by their requests, and go on meanwhile?

use nerite_client::{DataType, Lease, Request, Session};
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

/// Sessions that wait for the model `late`: one to infer, one to prepare, one to describe. A second call waits behind each.
fn waiting(server: &TestServer) -> Vec<Raw> {
    let infer = || {
        let request = proto::ModelInferRequest { model_name: "late".into(), ..Default::default() }.encode_to_vec();
        v1::Infer { request: request.into(), leased_outputs: Vec::new() }
    };
    let calls = [
        Call::Infer(infer()),
        Call::Prepare(v1::Prepare { infer: Some(infer()), ..v1::Prepare::default() }),
        Call::DescribeModel(v1::DescribeModel { name: "late".into(), version: String::new() }),
    ];
    let begin = |call| {
        let raw = Raw::welcomed(&server.socket);
        raw.call(2, call);
        raw.call(3, Call::SessionStatus(v1::SessionStatus {}));
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
        raw.call(2 + id, Call::Infer(v1::Infer { request, leased_outputs: Vec::new() }));
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
