//! Is one inference answered correctly?

use nerite_grpc::Options;
use nerite_memory::{Reason, copied_bytes};
use nerite_wire::proto::messages::infer_parameter::ParameterChoice;
use nerite_wire::proto::messages::{InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse};

use crate::peer::{finish, framed, request};
use crate::test_server::TestServer;

#[tokio::test]
async fn a_response_names_model_version_request_and_tensors() {
    let server = TestServer::new();
    let reply = server.peer().await.call("ModelInfer", &request("echo", "seven", 3)).await;
    let response: ModelInferResponse = reply.message();
    assert_eq!(
        (response.model_name.as_str(), response.model_version.as_str(), response.id.as_str()),
        ("echo", "1", "seven")
    );
    assert_eq!(response.outputs.len(), 1);
    let output = &response.outputs[0];
    assert_eq!((output.name.as_str(), output.datatype.as_str(), output.shape.as_slice()), ("OUT", "FP32", &[3][..]));
    assert_eq!(response.raw_output_contents, [1f32.to_le_bytes().repeat(3)]);
}

#[tokio::test]
async fn typed_contents_count_as_data() {
    let server = TestServer::new();
    let mut message = request("echo", "", 2);
    message.raw_input_contents.clear();
    message.inputs[0].contents = Some(InferTensorContents { fp32_contents: vec![1.0, 2.0], ..Default::default() });
    let response: ModelInferResponse = server.peer().await.call("ModelInfer", &message).await.message();
    assert_eq!(response.raw_output_contents, [[1f32.to_le_bytes(), 2f32.to_le_bytes()].concat()]);
}

#[track_caller]
fn check(status: (u32, &str), expect: (u32, &str)) {
    assert_eq!(status, expect);
}

#[tokio::test]
async fn errors_are_statuses_in_the_order_of_the_checks() {
    let server = TestServer::new();
    let peer = server.peer().await;
    let fail = async |change: fn(&mut ModelInferRequest)| {
        let mut message = request("echo", "", 2);
        change(&mut message);
        peer.call("ModelInfer", &message).await
    };
    let reply = fail(|message| message.model_name = "nobody".into()).await;
    check(reply.status(), (5, "Request for unknown model: 'nobody' is not found"));
    let reply = fail(|message| message.model_version = "7".into()).await;
    check(
        reply.status(),
        (5, "Request for unknown model: 'echo' version 7 is not found; versions that take requests: 1"),
    );
    let reply = fail(|message| {
        message.model_name = "nobody".into();
        message.parameters.insert("timeout".into(), InferParameter::default());
    });
    check(reply.await.status(), (5, "Request for unknown model: 'nobody' is not found"));
    let reply = fail(|message| message.model_name = "repeat".into()).await;
    check(reply.status(), (12, "ModelInfer RPC doesn't support models with decoupled transaction policy"));
    let reply = fail(|message| {
        message.raw_input_contents.clear();
        message.parameters.insert("timeout".into(), InferParameter::default());
    });
    let text = "invalid value type for 'timeout' parameter, expected int64_param.";
    check(reply.await.status(), (3, text));
    let reply = fail(|message| message.raw_input_contents.clear()).await;
    check(reply.status(), (3, "unable to find data for input tensor 'IN' for model 'echo' in request."));
    let reply = fail(|message| message.raw_input_contents = vec![b"abc"[..].into()]).await;
    assert_eq!(reply.status().0, 3);
    assert!(reply.status().1.contains("input byte size mismatch for input 'IN' for model 'echo'. Expected 8, got 3"));
    let reply = fail(|message| message.inputs[0].datatype = "FP8".into()).await;
    let text =
        "[request id: <id_unknown>] inference input 'IN' data-type is '<invalid>', but model 'echo' expects 'FP32'";
    check(reply.status(), (3, text));
    let reply = fail(|message| {
        let region = [
            ("shared_memory_region", ParameterChoice::StringParam("r".into())),
            ("shared_memory_byte_size", ParameterChoice::Int64Param(8)),
        ];
        let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
        message.inputs[0].parameters = region.map(|(key, choice)| (key.to_owned(), parameter(choice))).into();
    });
    let reply = reply.await;
    assert_eq!(reply.status().0, 5);
    assert!(reply.status().1.starts_with("Unable to find shared memory region: 'r'"), "{:?}", reply.status());
}

#[tokio::test]
async fn a_large_tensor_is_copied_once_when_received_and_never_when_sent() {
    let server = TestServer::new();
    let peer = server.peer().await;
    let len = 8 << 20;
    let before = (copied_bytes(Reason::InlineRequest), copied_bytes(Reason::InlineResponse));
    let response: ModelInferResponse = peer.call("ModelInfer", &request("echo", "", len / 4)).await.message();
    assert_eq!(response.raw_output_contents[0].len(), len);
    let copied_in = copied_bytes(Reason::InlineRequest) - before.0;
    // Other tests run at the same time and copy some bytes too.
    assert!((len as u64..2 * len as u64).contains(&copied_in), "{copied_in} bytes copied in");
    assert!(copied_bytes(Reason::InlineResponse) - before.1 < len as u64);
}

#[tokio::test]
async fn a_client_that_closes_the_call_cancels_its_request() {
    let server = TestServer::new();
    let peer = server.peer().await;
    let (feed, calling) = peer.begin("ModelInfer", &[]).await.unwrap();
    feed.send(framed(&request("held", "gone", 1)).into()).unwrap();
    drop(feed);
    let waiting = tokio::spawn(calling);
    server.held.wait(1).await;
    assert!(!server.held.is_cancelled("gone"));
    waiting.abort();
    while !server.held.is_cancelled("gone") {
        tokio::task::yield_now().await;
    }
    server.held.answer("gone");
}

#[tokio::test]
async fn a_deadline_cancels_with_its_own_status() {
    let server = TestServer::new();
    let peer = server.peer().await;
    let (feed, calling) = peer.begin("ModelInfer", &[("grpc-timeout", "1S")]).await.unwrap();
    feed.send(framed(&request("held", "late", 1)).into()).unwrap();
    drop(feed);
    server.held.wait(1).await;
    assert_eq!(finish(calling).await.status(), (4, "Deadline Exceeded"));
    assert!(server.held.is_cancelled("late"));
    server.held.answer("late");
}

#[tokio::test]
async fn selected_metadata_become_parameters() {
    let rules = nerite_api::Options {
        grpc_forward: Some(regex::Regex::new("(?i)^(x-|priority)").unwrap()),
        ..Default::default()
    };
    let server = TestServer::with(Options::default(), rules);
    let peer = server.peer().await;
    let body = framed(&request("echo", "", 1));
    assert_eq!(peer.call_raw("ModelInfer", &[("x-user", "me")], &[&body]).await.status(), (0, ""));
    let reply = peer.call_raw("ModelInfer", &[("priority", "1")], &[&body]).await;
    check(reply.status(), (3, "Header 'priority' is reserved for Triton usage and cannot be forwarded."));
}
