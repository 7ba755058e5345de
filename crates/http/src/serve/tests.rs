//! Are connections served and closed as clients expect?

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::mpsc;

use bytes::Bytes;
use http::StatusCode;
use http_body::Body;
use tokio::sync::Notify;

use super::*;
use crate::receive::{Expected, receive};
use crate::reply::{bare, json};
use nerite_listen::{BindError, ConnectionLimits, Endpoint, Peers, TimeLimits, bind};

/// Answers with the body of the request, except for three paths: `/slow` waits for `gate`, `/early` does not read the body, and `/pieces` sends
/// 40 pieces.
struct Echo {
    account: Account,
    gate: Arc<Notify>,
    /// Receives `begun` when a request for `/slow` begins, and `dropped` when its future ends or is dropped.
    news: Mutex<mpsc::Sender<&'static str>>,
}

impl Handler for Echo {
    fn account(&self) -> &Account {
        &self.account
    }

    fn flow(&self) -> Flow {
        Flow::alone()
    }

    fn for_peer(self: &Arc<Self>, _: Peer) -> Arc<Self> {
        Arc::clone(self)
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Outgoing> {
        match request.uri().path() {
            "/slow" => {
                let _dropped = SendOnDrop(self, "dropped");
                drop(SendOnDrop(self, "begun"));
                self.gate.notified().await;
                bare(StatusCode::OK)
            }
            "/early" => bare(StatusCode::BAD_REQUEST),
            "/pieces" => {
                let pieces = (0..40).map(|n| Bytes::from(vec![n; 10_000])).collect::<VecDeque<_>>();
                Response::new(Outgoing::Pieces(pieces))
            }
            _ => {
                let body = request.into_body();
                let expected = Expected {
                    declared: body.size_hint().exact(),
                    tail_at: Some(0),
                    bytes_max: u64::MAX,
                    too_large: |_, _| unreachable!("no body is larger"),
                };
                receive(body, expected, &self.account)
                    .await
                    .map_or_else(Into::into, |received| json(received.bytes().to_vec()))
            }
        }
    }
}

/// Sends its text to the test when it is dropped.
struct SendOnDrop<'e>(&'e Echo, &'static str);

impl Drop for SendOnDrop<'_> {
    fn drop(&mut self) {
        let _ = self.0.news.lock().unwrap().send(self.1);
    }
}

struct TestServer {
    address: SocketAddr,
    socket: std::path::PathBuf,
    gate: Arc<Notify>,
    news: mpsc::Receiver<&'static str>,
    handle: Handle,
    stopped: mpsc::Receiver<()>,
    stop: mpsc::Sender<()>,
    _folder: tempfile::TempDir,
}

fn server() -> TestServer {
    server_with(TimeLimits::default(), ConnectionLimits::for_descriptors(1024))
}

#[expect(clippy::disallowed_methods, reason = "a test waits for its own gate")]
fn server_with(times: TimeLimits, connections: ConnectionLimits) -> TestServer {
    let rules = ConnectionRules { peers: Peers::new(connections), times };
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("http.sock");
    let (gate, (news_sender, news)) = (Arc::new(Notify::new()), mpsc::channel());
    let echo = Arc::new(Echo { account: Account::unlimited(), gate: Arc::clone(&gate), news: Mutex::new(news_sender) });
    let (ready, handle) = mpsc::channel();
    let (stop, stop_receiver) = mpsc::channel::<()>();
    let (stopped_sender, stopped) = mpsc::channel();
    let path = socket.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let tcp = bind(&Endpoint::Tcp { address: "127.0.0.1".into(), port: 0, reuse_port: false }).unwrap();
            let address = tcp.address().unwrap();
            let unix = bind(&Endpoint::unix(&path)).unwrap();
            let handle = serve_by(&echo, Options::default(), rules, vec![tcp, unix]).unwrap();
            ready.send((address, handle.clone())).unwrap();
            tokio::task::spawn_blocking(move || stop_receiver.recv()).await.unwrap().unwrap();
            handle.stop().await;
            stopped_sender.send(()).unwrap();
        });
    });
    let (address, handle) = handle.recv().unwrap();
    TestServer { address, socket, gate, news, handle, stopped, stop, _folder: folder }
}

/// Sends `request`, and reads an answer with each of `bodies`. Returns the first lines of the answers.
#[track_caller]
fn talk(stream: &mut (impl Read + Write), request: &[u8], bodies: &[&[u8]]) -> Vec<String> {
    stream.write_all(request).unwrap();
    bodies.iter().map(|body| answer(stream, body)).collect()
}

#[track_caller]
fn answer(stream: &mut impl Read, body: &[u8]) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let mut got = vec![0; body.len()];
    stream.read_exact(&mut got).unwrap();
    assert!(got == body, "{} bytes differ", body.len());
    String::from_utf8(head).unwrap().lines().next().unwrap().to_string()
}

/// Waits until `done` returns true. The service may do some work only after its client has seen the answer.
fn until(done: impl Fn() -> bool) {
    while !done() {
        std::thread::yield_now();
    }
}

const OK: &str = "HTTP/1.1 200 OK";

fn post(body: &[u8]) -> Vec<u8> {
    let head = format!("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

#[test]
fn one_connection_carries_many_requests_even_before_their_answers() {
    let server = server();
    let mut stream = TcpStream::connect(server.address).unwrap();
    assert_eq!(talk(&mut stream, &post(b"one"), &[b"one"]), [OK]);
    let pipelined = [post(b"two"), post(b""), post(b"four")].concat();
    assert_eq!(talk(&mut stream, &pipelined, &[b"two", b"", b"four"]), [OK, OK, OK]);
    assert_eq!(server.handle.connections(), 1);
}

#[test]
fn a_unix_socket_speaks_the_same() {
    let server = server();
    let mut stream = UnixStream::connect(&server.socket).unwrap();
    assert_eq!(talk(&mut stream, &post(b"one"), &[b"one"]), [OK]);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test may panic")]
fn large_bodies_and_many_pieces_come_and_go_whole() {
    let server = server();
    let mut stream = TcpStream::connect(server.address).unwrap();
    let body: Vec<u8> = (0..3_000_000u32).map(|n| n as u8).collect();
    let mut writer = stream.try_clone().unwrap();
    let request = post(&body);
    let sending = std::thread::spawn(move || writer.write_all(&request).unwrap());
    assert_eq!(answer(&mut stream, &body), OK);
    sending.join().unwrap();
    let pieces: Vec<u8> = (0..40).flat_map(|n| vec![n; 10_000]).collect();
    assert_eq!(talk(&mut stream, b"GET /pieces HTTP/1.1\r\nHost: localhost\r\n\r\n", &[&pieces]), [OK]);
    let chunked =
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    assert_eq!(talk(&mut stream, chunked, &[b"abcde"]), [OK]);
}

#[test]
fn a_client_that_asks_first_is_told_to_go_on_when_its_body_is_wanted() {
    let server = server();
    let mut stream = TcpStream::connect(server.address).unwrap();
    let head = "HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n";
    assert_eq!(talk(&mut stream, format!("POST /echo {head}").as_bytes(), &[b""]), ["HTTP/1.1 100 Continue"]);
    assert_eq!(talk(&mut stream, b"abc", &[b"abc"]), [OK]);
    let refused = talk(&mut stream, format!("POST /early {head}").as_bytes(), &[b""]);
    assert_eq!(refused, ["HTTP/1.1 400 Bad Request"]);
}

#[test]
fn a_request_whose_client_goes_away_is_dropped() {
    let server = server();
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.write_all(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert_eq!(server.news.recv(), Ok("begun"));
    drop(stream);
    assert_eq!(server.news.recv(), Ok("dropped"));
}

#[test]
fn a_stop_closes_the_idle_at_once_and_waits_for_the_busy() {
    let server = server();
    let mut fresh = TcpStream::connect(server.address).unwrap();
    let mut idle = TcpStream::connect(server.address).unwrap();
    assert_eq!(talk(&mut idle, &post(b"one"), &[b"one"]), [OK]);
    let mut half = TcpStream::connect(server.address).unwrap();
    half.write_all(b"GET /v2/heal").unwrap();
    let mut busy = TcpStream::connect(server.address).unwrap();
    busy.write_all(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert_eq!(server.news.recv(), Ok("begun"));
    server.stop.send(()).unwrap();
    for stream in [&mut fresh, &mut idle] {
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    until(|| TcpStream::connect(server.address).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused));
    until(|| !server.socket.exists());
    until(|| server.handle.connections() == 1);
    assert!(server.stopped.try_recv().is_err());
    server.gate.notify_one();
    assert_eq!(answer(&mut busy, b""), OK);
    server.stopped.recv().unwrap();
    assert_eq!(server.handle.connections(), 0);
}

#[test]
fn a_stop_does_not_wait_for_half_requests() {
    let server = server();
    let mut half = TcpStream::connect(server.address).unwrap();
    half.write_all(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhalf").unwrap();
    let mut second = TcpStream::connect(server.address).unwrap();
    let request = [post(b"one"), b"GET /v2/heal".to_vec()].concat();
    assert_eq!(talk(&mut second, &request, &[b"one"]), [OK]);
    // The server has read a part of the half body by now, because it accepted that connection first.
    server.stop.send(()).unwrap();
    server.stopped.recv().unwrap();
    assert_eq!(half.read(&mut [0]).unwrap_or(0), 0);
}

#[test]
fn a_stop_does_not_wait_for_a_client_that_does_not_read() {
    let server = server();
    let mut stream = TcpStream::connect(server.address).unwrap();
    // The answers exceed the socket buffers of the system, which hold some megabytes.
    for _ in 0..200 {
        stream.write_all(b"GET /pieces HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    }
    until(|| server.handle.connections() == 1);
    server.stop.send(()).unwrap();
    server.stopped.recv().unwrap();
}

#[track_caller]
fn check_ended(times: TimeLimits, sent: &[u8], answers: &[&[u8]], then: &[u8]) {
    let server = server_with(times, ConnectionLimits::for_descriptors(1024));
    let mut stream = TcpStream::connect(server.address).unwrap();
    talk(&mut stream, sent, answers);
    stream.write_all(then).unwrap();
    // The stream ends, or is reset if the server did not read all that the client sent.
    assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
    until(|| server.handle.connections() == 0);
}

#[test]
fn who_keeps_the_server_waiting_is_ended() {
    let soon = Some(Duration::from_millis(100));
    let never = TimeLimits { head: None, idle: None, body: None, write: None };
    check_ended(TimeLimits { head: soon, ..never }, b"", &[], b"");
    check_ended(TimeLimits { head: soon, ..never }, b"GET /v2/heal", &[], b"");
    check_ended(TimeLimits { head: soon, ..never }, &post(b"one"), &[b"one"], b"GET");
    check_ended(TimeLimits { idle: soon, ..never }, &post(b"one"), &[b"one"], b"");
    let half = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhalf";
    check_ended(TimeLimits { body: soon, ..never }, half, &[], b"");
    let unread = b"GET /pieces HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(200);
    check_ended_unread(TimeLimits { write: soon, ..never }, &unread);
}

#[track_caller]
fn check_ended_unread(times: TimeLimits, sent: &[u8]) {
    let server = server_with(times, ConnectionLimits::for_descriptors(1024));
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.write_all(sent).unwrap();
    until(|| server.handle.connections() == 1);
    until(|| server.handle.connections() == 0);
}

#[test]
fn who_finds_no_place_is_told_and_who_is_idle_makes_room() {
    let server = server_with(TimeLimits::default(), ConnectionLimits { all_max: 16, per_peer_max: 8 });
    // The tests run as the server's own user, an operator, who may have 14 of the 16.
    let mut busy: Vec<_> = (0..13).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    for stream in &mut busy {
        stream.write_all(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        assert_eq!(server.news.recv(), Ok("begun"));
    }
    let mut idle = TcpStream::connect(server.address).unwrap();
    assert_eq!(talk(&mut idle, &post(b"one"), &[b"one"]), [OK]);
    let mut newcomer = TcpStream::connect(server.address).unwrap();
    assert_eq!(talk(&mut newcomer, &post(b"two"), &[b"two"]), [OK]);
    assert_eq!(idle.read(&mut [0]).unwrap(), 0);
    newcomer.write_all(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert_eq!(server.news.recv(), Ok("begun"));
    let mut refused = String::new();
    TcpStream::connect(server.address).unwrap().read_to_string(&mut refused).unwrap();
    assert!(refused.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{refused}");
    assert!(refused.contains("{\"error\":\"14 connections are open, of 14 that there may be"), "{refused}");
}

#[test]
fn a_taken_port_is_named_and_a_dead_socket_file_replaced() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = bind(&Endpoint::Tcp { address: "127.0.0.1".into(), port, reuse_port: false }).unwrap_err();
    assert_eq!(error.to_string(), format!("Socket '127.0.0.1:{port}' already in use "));

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let listening = bind(&Endpoint::unix(&path)).unwrap();
    assert!(matches!(bind(&Endpoint::unix(&path)), Err(BindError::InUse(_))));
    drop(listening);
}
