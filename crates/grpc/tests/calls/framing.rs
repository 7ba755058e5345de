//! Which requests are gRPC, and which are not?

use http::StatusCode;
use nerite_api::{Category, Protocol, Restriction};
use nerite_grpc::Options;
use nerite_wire::proto::health::{HealthCheckRequest, HealthCheckResponse};
use nerite_wire::proto::messages::{
    ModelInferResponse, ServerLiveRequest, ServerLiveResponse, ServerReadyRequest, ServerReadyResponse,
};

use crate::peer::{framed, request};
use crate::test_server::TestServer;

#[tokio::test]
async fn health_is_reported_by_both_services() {
    let server = TestServer::new();
    let peer = server.peer().await;
    let live = peer.call("ServerLive", &ServerLiveRequest {}).await;
    assert!(live.message::<ServerLiveResponse>().live);
    assert_eq!(live.headers["content-type"], "application/grpc");
    assert!(peer.call("ServerReady", &ServerReadyRequest {}).await.message::<ServerReadyResponse>().ready);
    let health = peer.call("/grpc.health.v1.Health/Check", &HealthCheckRequest { service: "any".into() }).await;
    assert_eq!(health.message::<HealthCheckResponse>().status, 1);
}

#[tokio::test]
async fn unknown_calls_are_unimplemented_without_a_message() {
    let server = TestServer::new();
    let peer = server.peer().await;
    for path in ["/inference.GRPCInferenceService/Nothing", "/grpc.health.v1.Health/Watch", "/x", "/"] {
        let reply = peer.call(path, &ServerLiveRequest {}).await;
        assert_eq!(reply.status(), (12, ""), "{path}");
        assert!(reply.messages.is_empty() && reply.trailers.is_none());
    }
}

#[tokio::test]
async fn requests_that_are_not_grpc_get_an_http_error() {
    let server = TestServer::new();
    let peer = server.peer().await;
    let reply = peer.call_raw("ServerLive", &[("content-type", "application/json")], &[b"{}"]).await;
    assert_eq!(reply.http, StatusCode::UNSUPPORTED_MEDIA_TYPE);
}

#[tokio::test]
async fn messages_may_arrive_in_any_pieces() {
    let server = TestServer::new();
    let peer = server.peer().await;
    let message = framed(&request("echo", "7", 40));
    for step in [1, 3, 5, 64, 1000] {
        let pieces: Vec<&[u8]> = message.chunks(step).collect();
        let reply = peer.call_raw("ModelInfer", &[], &pieces).await;
        assert_eq!(reply.message::<ModelInferResponse>().raw_output_contents[0].len(), 160);
    }
}

#[tokio::test]
async fn an_invalid_message_is_an_error_and_the_connection_continues() {
    let server = TestServer::new();
    let peer = server.peer().await;
    let unreadable = |cause: &str| format!("Unable to parse request: {cause}");
    for (pieces, expect) in [
        (&[&b""[..]][..], "No payload".to_owned()),
        (&[b"\0\0\0"], unreadable("the call ended within a message")),
        (&[b"\0\0\0\0\x09abc"], unreadable("the call ended within a message")),
        (&[b"\x07\0\0\0\0"], unreadable("a message begins with the flag 7")),
        (&[b"\x01\0\0\0\x01a"], unreadable("the message is compressed, but no grpc-encoding says how")),
        (&[b"\0\0\0\0\0\0\0\0\0\0"], unreadable("a second message where there can be only one")),
        (&[b"\0\0\0\0\x02\x0a\x09"], unreadable("a field of 9 bytes where 0 are left")),
    ] {
        let reply = peer.call_raw("ModelInfer", &[], pieces).await;
        assert_eq!(reply.status(), (13, expect.as_str()));
    }
    let reply = peer.call_raw("ModelInfer", &[], &[b"\0\xff\xff\xff\xff"]).await;
    assert_eq!(reply.status(), (8, "SERVER: Received message larger than max (4294967295 vs. 2147483647)"));
    let live = peer.call("ServerLive", &ServerLiveRequest {}).await;
    assert!(live.message::<ServerLiveResponse>().live);
}

#[tokio::test]
async fn a_restricted_call_requires_its_metadata() {
    let rule = Restriction {
        protocol: Protocol::Grpc,
        category: Category::Health,
        header: "triton-grpc-protocol-key".into(),
        value: "secret".into(),
    };
    let rules = nerite_api::Options { restrictions: vec![rule], ..Default::default() };
    let server = TestServer::with(Options::default(), rules);
    let peer = server.peer().await;
    let body = framed(&ServerLiveRequest {});
    let text = "This protocol is restricted, expecting header 'triton-grpc-protocol-key'";
    for headers in [&[][..], &[("triton-grpc-protocol-key", "wrong")]] {
        assert_eq!(peer.call_raw("ServerLive", headers, &[&body]).await.status(), (14, text));
    }
    let reply = peer.call_raw("ServerLive", &[("triton-grpc-protocol-key", "secret")], &[&body]).await;
    assert!(reply.message::<ServerLiveResponse>().live);
    let reply = peer.call("ModelInfer", &request("echo", "", 1)).await;
    assert_eq!(reply.status(), (0, ""));
}
