//! Does the port close without losing a request?

use nerite_wire::proto::messages::{ModelInferResponse, ServerLiveRequest};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::peer::{Peer, StreamCall, finish, framed, request};
use crate::test_server::TestServer;

const STOPPING: &str = "GRPC server is shutting down and has stopped accepting new requests.";

#[tokio::test]
async fn idle_connections_do_not_delay_a_stop() {
    let server = TestServer::new();
    let peer = server.peer().await;
    peer.call("ServerLive", &ServerLiveRequest {}).await;
    assert_eq!(server.handle.connections(), 1);
    server.handle.stop().await;
    assert_eq!(server.handle.connections(), 0);
    assert!(peer.begin("ServerLive", &[]).await.is_none());
}

#[tokio::test]
async fn a_connection_without_a_call_does_not_delay_a_stop() {
    let server = TestServer::new();
    let begun = [&b""[..], b"PRI * HT", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"];
    let mut silent = Vec::new();
    for bytes in begun {
        let mut stream = TcpStream::connect(server.address.unwrap()).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        silent.push(stream);
    }
    while server.handle.connections() < begun.len() {
        tokio::task::yield_now().await;
    }
    server.handle.stop().await;
    assert_eq!(server.handle.connections(), 0);
}

#[tokio::test]
async fn calls_in_progress_are_finished() {
    let server = TestServer::new();
    let peer = server.peer().await;
    let (feed, calling) = peer.begin("ModelInfer", &[]).await.unwrap();
    feed.send(framed(&request("held", "x", 1)).into()).unwrap();
    drop(feed);
    let waiting = tokio::spawn(finish(calling));
    server.held.wait(1).await;
    assert_eq!(server.handle.calls(), 1);
    let stopped = tokio::spawn(server.handle.stop());
    server.held.answer("x");
    let response: ModelInferResponse = waiting.await.unwrap().message();
    assert_eq!(response.id, "x");
    stopped.await.unwrap();
    assert_eq!((server.handle.calls(), server.handle.connections()), (0, 0));
}

#[tokio::test]
async fn an_open_stream_ends_once_all_requests_are_answered() {
    let server = TestServer::new();
    let mut stream_call = StreamCall::begin(&server.peer().await, &[]).await;
    stream_call.send_message(&request("held", "x", 1));
    server.held.wait(1).await;
    let stopped = tokio::spawn(server.handle.stop());
    // The stop may be noticed before the answer or after it. The outcome is the same.
    tokio::task::yield_now().await;
    server.held.answer("x");
    assert_eq!(stream_call.next().await.unwrap().infer_response.unwrap().id, "x");
    assert_eq!(stream_call.status().await, (14, STOPPING.to_owned()));
    stopped.await.unwrap();
}

#[tokio::test]
async fn an_incomplete_request_does_not_delay_a_stop() {
    let server = TestServer::new();
    let peer = server.peer().await;
    let whole = framed(&request("echo", "x", 100));
    let (feed, calling) = peer.begin("ModelInfer", &[]).await.unwrap();
    feed.send(bytes::Bytes::copy_from_slice(&whole[..50])).unwrap();
    let stream_call = StreamCall::begin(&peer, &[]).await;
    stream_call.send(&whole[..50]);
    while server.handle.calls() < 2 {
        tokio::task::yield_now().await;
    }
    server.handle.stop().await;
    assert_eq!((server.handle.calls(), server.handle.connections()), (0, 0));
    drop((feed, calling, stream_call));
}

#[tokio::test]
async fn a_client_that_does_not_read_does_not_delay_a_stop() {
    let server = TestServer::new();
    let peer = Peer::narrow(TcpStream::connect(server.address.unwrap()).await.unwrap()).await;
    let (feed, calling) = peer.begin("ModelInfer", &[]).await.unwrap();
    feed.send(framed(&request("echo", "x", 1 << 20)).into()).unwrap();
    drop(feed);
    let unread = calling.await.unwrap();
    let stream_call = StreamCall::begin(&peer, &[]).await;
    for _ in 0..4 {
        stream_call.send_message(&request("echo", "x", 1 << 18));
    }
    server.handle.stop().await;
    assert_eq!(server.handle.connections(), 0);
    drop((unread, stream_call));
}
