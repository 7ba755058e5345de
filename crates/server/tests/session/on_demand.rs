//! Do sessions load models by their requests, and go on meanwhile?

use nerite_client::{DataType, Lease, Request, Session};
use nerite_wire::proto::session::v1;
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
