//! Does a stream behave as documented?

use nerite_api::{Code, Status};
use nerite_grpc::{Options, limits};
use nerite_wire::proto::messages::infer_parameter::ParameterChoice;
use nerite_wire::proto::messages::{InferParameter, ModelInferRequest, ModelStreamInferResponse};

use crate::peer::{StreamCall, request};
use crate::test_server::TestServer;

fn with(mut request: ModelInferRequest, key: &str, choice: ParameterChoice) -> ModelInferRequest {
    request.parameters.insert(key.into(), InferParameter { parameter_choice: Some(choice) });
    request
}

/// Request id, error, number of outputs, and whether it is the last.
fn facts(answer: &ModelStreamInferResponse) -> (&str, &str, usize, Option<bool>) {
    let response = answer.infer_response.as_ref().unwrap();
    let last = response.parameters.get("triton_final_response").map(|parameter| match parameter.parameter_choice {
        Some(ParameterChoice::BoolParam(last)) => last,
        ref other => panic!("{other:?}"),
    });
    (&response.id, &answer.error_message, response.outputs.len(), last)
}

#[tokio::test]
async fn answers_are_sent_in_the_order_of_the_requests() {
    let server = TestServer::new();
    let mut stream_call = StreamCall::begin(&server.peer().await, &[]).await;
    for id in ["a", "b", "c"] {
        stream_call.send_message(&request("held", id, 1));
    }
    stream_call.send_message(&request("echo", "d", 1));
    server.held.wait(3).await;
    for id in ["c", "a", "b"] {
        server.held.answer(id);
    }
    for id in ["a", "b", "c", "d"] {
        assert_eq!(facts(&stream_call.next().await.unwrap()), (id, "", 1, Some(true)));
    }
    stream_call.end();
    assert_eq!(stream_call.status().await, (0, String::new()));
}

#[tokio::test]
async fn many_requests_sent_at_once_are_all_answered() {
    let server = TestServer::new();
    let mut stream_call = StreamCall::begin(&server.peer().await, &[]).await;
    let count = limits::REQUESTS_PER_STREAM_MAX * 3;
    for id in 0..count {
        stream_call.send_message(&request("echo", &id.to_string(), 100));
    }
    stream_call.end();
    for id in 0..count {
        assert_eq!(facts(&stream_call.next().await.unwrap()).0, id.to_string());
    }
    assert_eq!(stream_call.status().await.0, 0);
}

#[tokio::test]
async fn a_decoupled_model_may_answer_any_number_of_times() {
    let server =
        TestServer::with(Options { response_pool_max: 2, ..Options::default() }, nerite_api::Options::default());
    let mut stream_call = StreamCall::begin(&server.peer().await, &[]).await;
    stream_call.send_message(&with(request("repeat", "r", 1), "count", ParameterChoice::Int64Param(40)));
    for _ in 0..40 {
        assert_eq!(facts(&stream_call.next().await.unwrap()), ("r", "", 1, Some(false)));
    }
    let silent = with(request("repeat", "s", 1), "count", ParameterChoice::Int64Param(0));
    stream_call.send_message(&silent);
    stream_call.send_message(&with(silent, "triton_enable_empty_final_response", ParameterChoice::BoolParam(true)));
    let answer = stream_call.next().await.unwrap();
    assert_eq!(facts(&answer), ("s", "", 0, Some(true)));
    assert_eq!(answer.infer_response.unwrap().model_name, "repeat");
    stream_call.end();
    assert_eq!(stream_call.status().await.0, 0);
}

#[tokio::test]
async fn errors_do_not_end_a_stream() {
    let server = TestServer::new();
    let mut stream_call = StreamCall::begin(&server.peer().await, &[]).await;
    stream_call.send_message(&request("held", "fails", 1));
    stream_call.send_message(&request("nobody", "refused", 1));
    stream_call.send_message(&request("echo", "fine", 1));
    server.held.wait(1).await;
    server.held.fail("fails", Status::internal("it broke"));
    let answer = stream_call.next().await.unwrap();
    assert_eq!(facts(&answer), ("fails", "it broke", 0, Some(true)));
    assert_eq!(answer.infer_response.unwrap().model_name, "held");
    let answer = stream_call.next().await.unwrap();
    assert_eq!(facts(&answer), ("refused", "Request for unknown model: 'nobody' is not found", 0, None));
    assert_eq!(answer.infer_response.unwrap().model_name, "");
    assert_eq!(facts(&stream_call.next().await.unwrap()), ("fine", "", 1, Some(true)));
    let odd = with(request("echo", "odd", 1), "triton_enable_empty_final_response", ParameterChoice::Int64Param(1));
    stream_call.send_message(&odd);
    let text = "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param.";
    assert_eq!(facts(&stream_call.next().await.unwrap()), ("odd", text, 0, None));
}

#[tokio::test]
async fn a_strict_stream_ends_with_the_first_failed_response() {
    let server = TestServer::new();
    let mut stream_call = StreamCall::begin(&server.peer().await, &[("triton_grpc_error", "true")]).await;
    stream_call.send_message(&request("nobody", "refused", 1));
    assert_eq!(facts(&stream_call.next().await.unwrap()).0, "refused");
    stream_call.send_message(&request("held", "fails", 1));
    stream_call.send_message(&request("held", "other", 1));
    server.held.wait(2).await;
    server.held.fail("fails", Status::new(Code::Unavailable, "not now"));
    assert_eq!(stream_call.status().await, (14, "not now".to_owned()));
    assert!(server.held.is_cancelled("other"));
    server.held.answer("other");
}

#[tokio::test]
async fn a_stream_that_is_dropped_cancels_all_its_requests() {
    let server = TestServer::new();
    let stream_call = StreamCall::begin(&server.peer().await, &[]).await;
    stream_call.send_message(&request("held", "a", 1));
    stream_call.send_message(&request("held", "b", 1));
    server.held.wait(2).await;
    drop(stream_call);
    while !(server.held.is_cancelled("a") && server.held.is_cancelled("b")) {
        tokio::task::yield_now().await;
    }
    server.held.answer("a");
    server.held.answer("b");
}

#[tokio::test]
async fn an_invalid_message_ends_the_stream() {
    let server = TestServer::new();
    let peer = server.peer().await;
    let reply = peer.call_raw("ModelStreamInfer", &[], &[b"\0\0\0\0\x02\x0a\x09"]).await;
    assert_eq!(reply.status(), (13, "Unable to parse request: a field of 9 bytes where 0 are left"));
}

#[tokio::test]
async fn a_deadline_ends_a_stream() {
    let server = TestServer::new();
    let stream_call = StreamCall::begin(&server.peer().await, &[("grpc-timeout", "1S")]).await;
    stream_call.send_message(&request("held", "late", 1));
    server.held.wait(1).await;
    assert_eq!(stream_call.status().await, (4, "Deadline Exceeded".to_owned()));
    server.held.answer("late");
}
