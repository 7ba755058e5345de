//! Do requests of the Rust client continue the trace of their program?

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Duration;

use nerite_api::{SpanConfig, TraceConfig, TraceLevels};
use nerite_client::{Request, Session, Tensor};
use nerite_shm::LeaseLimits;

use crate::test_server::TestServer;

const SPAN: [u8; 8] = [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31];
const STATE: &str = "vendor=1";

/// The `traceparent` of [`SPAN`] in a trace of this number.
fn parent(trace: u8) -> String {
    format!("00-{}-b7ad6b7169203331-01", format!("{trace:02x}").repeat(16))
}

fn request(trace: Option<u8>) -> Request {
    let request = Request::new("echo").input(Tensor::from_slice("IN", &[1], &[7i32]).unwrap());
    match trace {
        Some(trace) => request.trace_parent(&parent(trace)).trace_state(STATE),
        None => request,
    }
}

/// A server that traces only requests below a span, and the spans that it sends, as they are encoded.
fn server() -> (TestServer, mpsc::Receiver<Vec<u8>>) {
    let (to, posts) = mpsc::channel();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
    std::thread::Builder::new().spawn(move || take_posts(&listener, &to)).unwrap();
    let spans = Some(SpanConfig { url, delay_ms: 1, ..SpanConfig::default() });
    let levels = TraceLevels { timestamps: true, tensors: false };
    let trace = TraceConfig { levels, rate: 0, spans, ..TraceConfig::default() };
    let limits = LeaseLimits { bytes_max: 64 << 20, session_bytes_max: 16 << 20 };
    (TestServer::with(limits, nerite_api::Options { trace, ..nerite_api::Options::default() }), posts)
}

/// Sends the body of each post on, until nobody waits for it.
fn take_posts(listener: &TcpListener, to: &mpsc::Sender<Vec<u8>>) {
    while let Ok((stream, _)) = listener.accept() {
        let mut reader = BufReader::new(stream);
        while let Some(body) = read_post(&mut reader) {
            reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
            if to.send(body).is_err() {
                return;
            }
        }
    }
}

fn read_post(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let (mut line, mut length) = (String::new(), 0);
    while {
        line.clear();
        reader.read_line(&mut line).ok()? > 2
    } {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok().filter(|()| length > 0).map(|()| body)
}

/// The next spans belong to the trace of this number, and one of them is below [`SPAN`].
#[track_caller]
fn check(posts: &mpsc::Receiver<Vec<u8>>, trace: u8) {
    let spans = posts.recv_timeout(Duration::from_mins(1)).unwrap();
    let has = |part: &[u8]| spans.windows(part.len()).any(|window| window == part);
    assert!(has(&[trace; 16]) && has(&SPAN) && has(STATE.as_bytes()), "trace {trace}: {spans:02x?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_continues_the_trace_of_its_program() {
    let (server, posts) = server();
    let (http, grpc) = server.clients();
    let session = Session::connect(&server.socket).await.unwrap();
    http.infer(&request(Some(1))).await.unwrap();
    check(&posts, 1);
    grpc.infer(&request(Some(2))).await.unwrap();
    check(&posts, 2);
    session.infer(&request(Some(3))).await.unwrap();
    check(&posts, 3);
    let prepared = session.prepare(&request(Some(4))).await.unwrap();
    prepared.call().await.unwrap();
    prepared.call_traced(&parent(5), STATE).await.unwrap();
    // The call before had no span above it, so it was not traced.
    check(&posts, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_span_above_it_or_with_a_malformed_one_begins_no_trace() {
    let (server, posts) = server();
    let (http, grpc) = server.clients();
    let session = Session::connect(&server.socket).await.unwrap();
    let prepared = session.prepare(&request(None)).await.unwrap();
    for text in ["", "garbage", "00-a\r\n", &"0".repeat(60_000)] {
        let request = request(None).trace_parent(text).trace_state(STATE);
        http.infer(&request).await.unwrap();
        grpc.infer(&request).await.unwrap();
        session.infer(&request).await.unwrap();
        prepared.call_traced(text, STATE).await.unwrap();
    }
    http.infer(&request(Some(6))).await.unwrap();
    check(&posts, 6);
}

/// A packet with many calls has one context.
#[tokio::test(flavor = "multi_thread")]
async fn all_calls_of_a_packet_belong_to_its_span() {
    use nerite_wire::proto::session::v1;
    use prost::Message as _;
    use v1::client_message::Call;

    let (server, posts) = server();
    let raw = crate::hostile::Raw::welcomed(&server.socket);
    let input = nerite_wire::proto::messages::model_infer_request::InferInputTensor {
        name: "IN".into(),
        datatype: "INT32".into(),
        shape: vec![1],
        ..Default::default()
    };
    let (inputs, raw_input_contents) = (vec![input], vec![vec![1u8; 4].into()]);
    let model_name = "echo".to_owned();
    let request = nerite_wire::proto::messages::ModelInferRequest {
        model_name,
        inputs,
        raw_input_contents,
        ..Default::default()
    };
    let infer = v1::Infer { request: request.encode_to_vec().into(), ..v1::Infer::default() };
    let handle = raw.prepare(infer, b"").unwrap();
    let trace = v1::TraceContext { trace_parent: parent(7).into(), trace_state: STATE.into() };
    raw.call(
        9,
        Call::CallPrepared(v1::CallPrepared { handle, further: vec![handle; 2], trace: Some(Box::new(trace)) }),
    );
    let mut found = 0;
    while found < 3 {
        let spans = posts.recv_timeout(Duration::from_mins(1)).unwrap();
        found += spans.windows(SPAN.len()).filter(|window| *window == SPAN).count();
    }
    assert_eq!(found, 3, "one for each call");
}
