//! Are only clients ended that keep the server waiting?

use std::time::Duration;

use bytes::Bytes;
use nerite_listen::TimeLimits;
use nerite_wire::proto::messages::{ModelInferResponse, ServerLiveRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::peer::{Peer, StreamCall, finish, framed, request};
use crate::test_server::TestServer;

const NEVER: TimeLimits = TimeLimits { head: None, idle: None, body: None, write: None };
const SOON: Option<Duration> = Some(Duration::from_millis(200));
const SLOW: &str =
    "the request's message stopped coming, or came too slowly; --body-progress-timeout says how slow it may be";

async fn until_connections_ended(server: &TestServer) {
    while server.handle.connections() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_connection_without_a_preface_or_idle_for_too_long_ends() {
    let server = TestServer::limited(TimeLimits { head: SOON, ..NEVER });
    for begun in [&b""[..], b"PRI * HT", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0"] {
        let mut stream = TcpStream::connect(server.address.unwrap()).await.unwrap();
        stream.write_all(begun).await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
    until_connections_ended(&server).await;
    let server = TestServer::limited(TimeLimits { idle: SOON, ..NEVER });
    let peer = server.peer().await;
    peer.call("ServerLive", &ServerLiveRequest {}).await;
    until_connections_ended(&server).await;
}

#[tokio::test]
async fn a_connection_with_an_incomplete_frame_ends() {
    let server = TestServer::limited(TimeLimits { body: SOON, ..NEVER });
    let mut stream = TcpStream::connect(server.address.unwrap()).await.unwrap();
    let settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    stream.write_all(&[&settings[..], b"\0\0\x09\x01"].concat()).await.unwrap();
    let _ = stream.read_to_end(&mut Vec::new()).await;
    until_connections_ended(&server).await;
}

#[tokio::test]
async fn a_call_with_an_incomplete_message_ends_and_the_connection_continues() {
    let server = TestServer::limited(TimeLimits { body: SOON, ..NEVER });
    let peer = server.peer().await;
    let whole = framed(&request("echo", "x", 100));
    for sent in [&whole[..0], &whole[..3], &whole[..50], &whole] {
        let (feed, calling) = peer.begin("ModelInfer", &[]).await.unwrap();
        feed.send(Bytes::copy_from_slice(sent)).unwrap();
        let reply = finish(calling).await;
        assert_eq!(reply.status(), (4, SLOW), "{} of {} bytes and no end", sent.len(), whole.len());
        drop(feed);
    }
    let mut stream_call = StreamCall::begin(&peer, &[]).await;
    // A stream may pause between two messages.
    for _ in 0..2 {
        stream_call.send_message(&request("echo", "x", 1));
        assert_eq!(stream_call.next().await.unwrap().error_message, "");
        tokio::time::sleep(3 * SOON.unwrap()).await;
    }
    stream_call.send(&whole[..20]);
    assert_eq!(stream_call.status().await, (4, SLOW.to_owned()));
    let response: ModelInferResponse = peer.call("ModelInfer", &request("echo", "y", 1)).await.message();
    assert_eq!(response.id, "y");
}

#[tokio::test]
async fn a_slow_client_that_continues_sending_is_served() {
    let server = TestServer::limited(TimeLimits { body: SOON, ..NEVER });
    let peer = server.peer().await;
    let (feed, calling) = peer.begin("ModelInfer", &[]).await.unwrap();
    let whole = Bytes::from(framed(&request("echo", "x", 4000)));
    for part in whole.chunks(whole.len() / 20) {
        feed.send(whole.slice_ref(part)).unwrap();
        tokio::time::sleep(SOON.unwrap() / 4).await;
    }
    drop(feed);
    let response: ModelInferResponse = finish(calling).await.message();
    assert_eq!(response.id, "x");
}

#[tokio::test]
async fn a_connection_whose_answer_is_not_read_ends() {
    let server = TestServer::limited(TimeLimits { write: SOON, ..NEVER });
    let peer = Peer::narrow(TcpStream::connect(server.address.unwrap()).await.unwrap()).await;
    let (feed, calling) = peer.begin("ModelInfer", &[]).await.unwrap();
    feed.send(framed(&request("echo", "x", 1 << 20)).into()).unwrap();
    drop(feed);
    let unread = calling.await.unwrap();
    until_connections_ended(&server).await;
    assert_eq!(server.handle.calls(), 0);
    drop(unread);
}

#[tokio::test]
async fn a_stream_whose_answers_are_not_read_ends_and_the_connection_continues() {
    let server = TestServer::limited(TimeLimits { write: SOON, ..NEVER });
    let peer = Peer::narrow(TcpStream::connect(server.address.unwrap()).await.unwrap()).await;
    let stream_call = StreamCall::begin(&peer, &[]).await;
    stream_call.send_message(&request("echo", "x", 5000));
    for _ in 0..3 {
        stream_call.send_message(&request("echo", "x", 1 << 18));
    }
    while server.handle.calls() > 0 {
        let response: ModelInferResponse = peer.call("ModelInfer", &request("echo", "y", 1)).await.message();
        assert_eq!(response.id, "y");
        tokio::time::sleep(SOON.unwrap() / 10).await;
    }
    assert_eq!(server.handle.connections(), 1);
    drop(stream_call);
}
