//! Does a client who breaks every rule hurt anybody but itself?

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nerite_client::{Request, Session, Tensor};
use nerite_session::limits::PREPARED_MAX;
use nerite_shm::LeaseCounts;
use nerite_wire::proto::messages as proto;
use nerite_wire::proto::session::{PACKET_BYTES_MAX, read_answer, v1};
use prost::Message as _;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType,
    connect, recv, send, sendmsg, socket, sockopt,
};
use v1::client_message::Call;
use v1::server_message::Answer;

use crate::test_server::TestServer;

/// A client that writes what it likes. All calls block.
pub struct Raw(OwnedFd);

impl Raw {
    pub fn connect(path: &Path) -> Raw {
        let raw = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        sockopt::set_socket_timeout(&raw, sockopt::Timeout::Recv, Some(std::time::Duration::from_mins(1))).unwrap();
        connect(&raw, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Raw(raw)
    }

    pub fn welcomed(path: &Path) -> Raw {
        let raw = Raw::connect(path);
        raw.call(1, Call::Hello(v1::Hello { version_min: 1, version_max: 7, ..v1::Hello::default() }));
        assert!(matches!(raw.answer().unwrap().answer, Some(Answer::Welcome(_))));
        raw
    }

    pub fn send(&self, bytes: &[u8]) {
        // The server may have closed; what it said is read by `answer`.
        let _ = send(&self.0, bytes, SendFlags::NOSIGNAL);
    }

    pub fn call(&self, id: u64, call: Call) {
        self.send(&v1::ClientMessage { id, returned: Vec::new(), call: Some(call) }.encode_to_vec());
    }

    /// The next message; `None` when the server has closed.
    pub fn answer(&self) -> Option<v1::ServerMessage> {
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        let (_, len) = recv(&self.0, &mut buffer[..], RecvFlags::empty()).ok()?;
        (len > 0).then(|| read_answer(buffer[..len].to_vec().into()).unwrap())
    }

    /// The text of the error that comes next.
    pub fn refusal(&self) -> String {
        match self.answer().and_then(|message| message.answer) {
            Some(Answer::Error(error)) => error.message,
            other => panic!("{other:?}"),
        }
    }
}

/// The `traceparent` of some span.
const PARENT: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// What a well-behaved neighbour sees, before, during and after.
async fn neighbour(server: &TestServer) -> Session {
    let session = Session::connect(&server.socket).await.unwrap();
    unhurt(&session).await;
    session
}

async fn unhurt(session: &Session) {
    let request = Request::new("echo").input(Tensor::from_slice("IN", &[2], &[1i32, 2]).unwrap());
    let response = session.infer_leased(&request, &["OUT"]).await.unwrap();
    assert_eq!(response.outputs[0].to_vec::<i32>().unwrap(), [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_answered_once_and_ends_the_session() {
    let server = TestServer::new();
    let neighbour = neighbour(&server).await;
    let long = vec![0u8; PACKET_BYTES_MAX + 1];
    let cases: [(&[u8], &str); 4] = [
        (&[0xff; 40], "packet not understood"),
        (&[0x42, 0x7f, 1, 2], "packet not understood"),
        (b"GET / HTTP/1.1\r\n\r\n", "packet not understood"),
        (&long, "a packet has 131073 bytes, at most 131072 are allowed"),
    ];
    for (bytes, text) in cases {
        for raw in [Raw::connect(&server.socket), Raw::welcomed(&server.socket)] {
            raw.send(bytes);
            let refusal = raw.refusal();
            assert!(refusal.starts_with(text), "{refusal}");
            assert!(raw.answer().is_none());
        }
        unhurt(&neighbour).await;
    }
}

/// The kernel tells of a reset connection first if a socket is closed with packets unread.
#[tokio::test(flavor = "multi_thread")]
async fn who_goes_on_talking_still_reads_why_it_was_cut_off() {
    let server = TestServer::new();
    for _ in 0..50 {
        let raw = Raw::welcomed(&server.socket);
        raw.send(&[0xff; 40]);
        for _ in 0..20 {
            raw.call(2, Call::SessionStatus(v1::SessionStatus {}));
        }
        assert!(raw.refusal().starts_with("packet not understood"));
        assert!(raw.answer().is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_begins_with_a_hello_of_a_known_version() {
    let server = TestServer::new();
    let raw = Raw::connect(&server.socket);
    raw.call(3, Call::Borrow(v1::Borrow { byte_size: 1 }));
    assert_eq!(raw.refusal(), "the first message of a session is Hello");
    assert!(raw.answer().is_none());
    let raw = Raw::connect(&server.socket);
    raw.call(1, Call::Hello(v1::Hello { version_min: 2, version_max: 9, ..v1::Hello::default() }));
    assert_eq!(raw.refusal(), "the client speaks versions 2 to 9 of the session protocol, this server 1");
    let raw = Raw::welcomed(&server.socket);
    raw.call(2, Call::Hello(v1::Hello::default()));
    assert_eq!(raw.refusal(), "Hello was said before");
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_message_and_unknown_calls_are_distinguished() {
    let server = TestServer::new();
    let raw = Raw::welcomed(&server.socket);
    raw.send(&v1::ClientMessage { id: 5, ..v1::ClientMessage::default() }.encode_to_vec());
    assert_eq!(raw.refusal(), "the server does not know this call");
    let infer = |request: &[u8]| {
        Call::Infer(v1::Infer { request: request.to_vec().into(), leased_outputs: vec![], trace: None })
    };
    raw.call(6, infer(&[0x0a, 200, 1, b'm']));
    assert!(raw.refusal().starts_with("the inference request is not understood"));
    raw.call(7, infer(&[0x0a, 1, b'm']));
    assert!(raw.refusal().starts_with("Request for unknown model: 'm' is not found"));
    let whole = v1::ClientMessage { id: 8, returned: vec![], call: Some(infer(&[0x0a, 1, b'm'])) }.encode_to_vec();
    raw.send(&whole[..whole.len() - 1]);
    assert!(raw.refusal().starts_with("packet not understood"));
}

#[tokio::test(flavor = "multi_thread")]
async fn descriptors_from_clients_are_not_taken() {
    let server = TestServer::new();
    let neighbour = neighbour(&server).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let status = v1::ClientMessage { id: 1, returned: vec![], call: Some(Call::SessionStatus(v1::SessionStatus {})) };
    let is_it = |link: &std::fs::DirEntry| std::fs::read_link(link.path()).is_ok_and(|path| path == file.path());
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter(is_it).count();
    // Since Linux 6.16 the kernel refuses them. Before, the server ends the session.
    let is_refused =
        nerite_shm::refuse_descriptors(socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap()).is_ok();
    for count in [1, 100, 253] {
        let descriptors = vec![file.as_fd(); count];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let bytes = status.encode_to_vec();
        for _ in 0..4 {
            let raw = Raw::welcomed(&server.socket);
            // 1,012 descriptors in all at the last count: more than a process has by default.
            let sent = sendmsg(&raw.0, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
            if is_refused {
                assert_eq!(sent, Err(Errno::PERM));
                continue;
            }
            sent.unwrap();
            assert!(raw.refusal().contains("SCM_RIGHTS"));
        }
        // The one of this test. How many others it has is the affair of all that run beside it.
        assert_eq!(open(), 1);
    }
    unhurt(&neighbour).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_read_its_answers_is_cut_off() {
    let server = TestServer::new();
    let neighbour = neighbour(&server).await;
    let socket = server.socket.clone();
    let flood = |call: fn() -> Call| {
        let raw = Raw::welcomed(&socket);
        sockopt::set_socket_timeout(&raw.0, sockopt::Timeout::Send, Some(std::time::Duration::from_mins(1))).unwrap();
        let bytes = v1::ClientMessage { id: 1, returned: vec![], call: Some(call()) }.encode_to_vec();
        // Ends by EPIPE or ECONNRESET when the server has closed.
        while send(&raw.0, &bytes, SendFlags::NOSIGNAL).is_ok() {}
    };
    tokio::task::block_in_place(|| flood(|| Call::Borrow(v1::Borrow { byte_size: 4096 })));
    unhurt(&neighbour).await;
    tokio::task::block_in_place(|| flood(|| Call::SessionStatus(v1::SessionStatus {})));
    unhurt(&neighbour).await;
    drop(neighbour);
    tokio::task::block_in_place(|| TestServer::until("the end", || server.pools.counts() == LeaseCounts::default()));
}

#[expect(clippy::unnecessary_wraps, reason = "the messages have it like this")]
fn trace(trace_parent: &[u8], trace_state: &[u8]) -> Option<Box<v1::TraceContext>> {
    let (trace_parent, trace_state) = (trace_parent.to_vec().into(), trace_state.to_vec().into());
    Some(Box::new(v1::TraceContext { trace_parent, trace_state }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_context_that_is_malformed_is_passed_over() {
    let server = TestServer::new();
    let raw = Raw::welcomed(&server.socket);
    let input = proto::model_infer_request::InferInputTensor {
        name: "IN".into(),
        datatype: "INT32".into(),
        shape: vec![1],
        ..Default::default()
    };
    let (inputs, raw_input_contents) = (vec![input], vec![vec![1u8; 4].into()]);
    let request =
        proto::ModelInferRequest { model_name: "echo".into(), inputs, raw_input_contents, ..Default::default() };
    let infer = || v1::Infer { request: request.encode_to_vec().into(), ..v1::Infer::default() };
    let handle = raw.prepare(infer(), b"").unwrap();
    let long = vec![b'-'; 60_000];
    let cases: [(&[u8], &[u8]); 5] =
        [(b"", b""), (PARENT, b"\xff\n"), (PARENT, &long), (&long, &long), (b"\xff\0", b"a=1")];
    for (id, (parent, state)) in (10..).zip(cases) {
        raw.call(id, Call::Infer(v1::Infer { trace: trace(parent, state), ..infer() }));
        raw.call(
            20 + id,
            Call::CallPrepared(v1::CallPrepared { handle, further: vec![], trace: trace(parent, state) }),
        );
        for _ in 0..2 {
            let answer = raw.answer().and_then(|message| message.answer);
            assert!(matches!(answer, Some(Answer::Inference(_))), "{answer:?}");
        }
    }
}

/// A message of each kind, as a client might send it.
fn messages() -> Vec<Vec<u8>> {
    let infer = |request: Vec<u8>| {
        let leased_outputs = vec!["OUT".to_owned()];
        Call::Infer(v1::Infer { request: request.into(), leased_outputs, trace: trace(PARENT, b"a=1") })
    };
    let echo = nerite_wire::proto::messages::ModelInferRequest {
        model_name: "echo".into(),
        inputs: vec![nerite_wire::proto::messages::model_infer_request::InferInputTensor {
            name: "IN".into(),
            datatype: "INT32".into(),
            shape: vec![2],
            ..Default::default()
        }],
        raw_input_contents: vec![vec![1; 8].into()],
        ..Default::default()
    };
    let (name, key) = ("r".to_owned(), "/nothing".to_owned());
    let calls = [
        Call::Hello(v1::Hello { version_min: 1, version_max: 1, ..v1::Hello::default() }),
        Call::Borrow(v1::Borrow { byte_size: 5000 }),
        Call::RegisterSystem(v1::RegisterSystem { name: name.clone(), key, offset: 0, byte_size: 4096 }),
        Call::UnregisterSystem(v1::UnregisterSystem { name: name.clone() }),
        Call::SystemStatus(v1::SystemStatus { name }),
        infer(echo.encode_to_vec()),
        Call::Cancel(v1::Cancel { id: 9 }),
        Call::SessionStatus(v1::SessionStatus {}),
        Call::Fetch(v1::Fetch { names: vec!["lease-00000000000000000000000000000000".to_owned()] }),
        Call::Abandon(v1::Abandon { tag: 1, kept: vec!["lease-00000000000000000000000000000000".to_owned()] }),
        Call::Prepare(v1::Prepare {
            infer: Some(v1::Infer {
                request: echo.encode_to_vec().into(),
                leased_outputs: vec!["OUT".to_owned()],
                trace: None,
            }),
            expected: proto::ModelInferResponse { model_name: "echo".into(), ..Default::default() }
                .encode_to_vec()
                .into(),
        }),
        Call::CallPrepared(v1::CallPrepared { handle: 1, further: vec![1, 2], trace: trace(PARENT, b"a=1") }),
        Call::Release(v1::Release { handles: vec![1, 2] }),
        Call::DescribeModel(v1::DescribeModel { name: "echo".into(), version: String::new() }),
        Call::InspectRegions(v1::InspectRegions {
            after: Some(v1::RegionCursor { session: 1, name: "r".into() }),
            name: Some("r".into()),
        }),
        Call::InspectPools(v1::InspectPools {}),
        Call::InspectSessions(v1::InspectSessions {}),
        Call::InspectLeases(v1::InspectLeases { session: 1 }),
    ];
    let returned = || vec!["lease-00000000000000000000000000000000".to_owned()];
    calls.map(|call| v1::ClientMessage { id: 9, returned: returned(), call: Some(call) }.encode_to_vec()).into()
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_with_changed_bytes_hurt_nobody() {
    let server = TestServer::new();
    let neighbour = neighbour(&server).await;
    let messages = messages();
    // A sequence without pattern, the same in every run.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut number = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for round in 0..400 {
        let raw = Raw::welcomed(&server.socket);
        for _ in 0..8 {
            let mut bytes = messages[number(messages.len())].clone();
            for _ in 0..=number(4) {
                let at = number(bytes.len());
                match number(3) {
                    0 => bytes[at] ^= 1 << number(8),
                    1 => bytes.truncate(at.max(1)),
                    _ => bytes.insert(at, number(256) as u8),
                }
            }
            raw.send(&bytes);
        }
        if round % 40 == 0 {
            unhurt(&neighbour).await;
        }
    }
    unhurt(&neighbour).await;
    drop(neighbour);
    tokio::task::block_in_place(|| TestServer::until("the end", || server.pools.counts() == LeaseCounts::default()));
}

#[tokio::test(flavor = "multi_thread")]
async fn floods_of_requests_and_names_are_refused_one_by_one() {
    let server = TestServer::new();
    let neighbour = neighbour(&server).await;
    let raw = Raw::welcomed(&server.socket);
    let request = nerite_wire::proto::messages::ModelInferRequest {
        model_name: "held".into(),
        inputs: vec![nerite_wire::proto::messages::model_infer_request::InferInputTensor {
            name: "IN".into(),
            datatype: "INT32".into(),
            shape: vec![1],
            ..Default::default()
        }],
        raw_input_contents: vec![vec![0; 4].into()],
        ..Default::default()
    };
    let infer =
        || v1::Infer { request: request.encode_to_vec().into(), leased_outputs: vec!["OUT".into()], trace: None };
    for id in 1..=256 {
        raw.call(id, Call::Infer(infer()));
    }
    raw.call(256, Call::Infer(infer()));
    assert!(raw.refusal().starts_with("256 inferences of this session are in flight"));
    raw.call(0, Call::Infer(infer()));
    raw.call(300, Call::Infer(v1::Infer { leased_outputs: vec!["OUT".into(); 1000], ..infer() }));
    assert!(raw.refusal().starts_with("1000 outputs are to be placed in leases, at most 128"));
    let returned = vec!["lease-00000000000000000000000000000000".to_owned(); 2000];
    raw.send(&v1::ClientMessage { id: 301, returned, call: None }.encode_to_vec());
    assert_eq!(raw.refusal(), "2000 of 2000 names are no leases of this session");
    raw.call(302, Call::Fetch(v1::Fetch { names: vec!["lease".into(); 129] }));
    assert!(raw.refusal().starts_with("129 leases are asked for, at most 128"));
    for tag in 0..3000 {
        raw.call(
            0,
            Call::Abandon(v1::Abandon { tag, kept: vec!["lease-00000000000000000000000000000000".into(); 100] }),
        );
    }
    unhurt(&neighbour).await;
    // Before that, all would be refused as cancelled and none be held.
    tokio::task::block_in_place(|| TestServer::until("the first", || server.held.count() > 0));
    drop(raw);
    tokio::task::block_in_place(|| TestServer::until("the cancellation", || server.held.cancelled() > 0));
    // Jobs that wait for an instance are refused as cancelled when those before them end.
    while server.held.count() > 0 {
        server.held.answer();
    }
    unhurt(&neighbour).await;
}

/// An inference of one number, in a lease.
fn infer(model: &str, lease: &str) -> v1::Infer {
    let (input, output) = (
        proto::model_infer_request::InferInputTensor {
            name: "IN".into(),
            datatype: "INT32".into(),
            shape: vec![1],
            parameters: window(lease, 0),
            contents: None,
        },
        proto::model_infer_request::InferRequestedOutputTensor { name: "OUT".into(), parameters: window(lease, 4) },
    );
    let (inputs, outputs) = (vec![input], vec![output]);
    let request = proto::ModelInferRequest { model_name: model.into(), inputs, outputs, ..Default::default() };
    v1::Infer { request: request.encode_to_vec().into(), leased_outputs: Vec::new(), trace: None }
}

fn window(lease: &str, offset: i64) -> std::collections::BTreeMap<String, proto::InferParameter> {
    use proto::infer_parameter::ParameterChoice::{Int64Param, StringParam};
    let choices = [
        ("shared_memory_region", StringParam(lease.into())),
        ("shared_memory_offset", Int64Param(offset)),
        ("shared_memory_byte_size", Int64Param(4)),
    ];
    let parameter = |choice| proto::InferParameter { parameter_choice: Some(choice) };
    choices.into_iter().map(|(key, choice)| (key.to_owned(), parameter(choice))).collect()
}

impl Raw {
    fn lease(&self) -> String {
        self.call(2, Call::Borrow(v1::Borrow { byte_size: 64 }));
        match self.answer().and_then(|message| message.answer) {
            Some(Answer::Lease(lease)) => lease.name,
            other => panic!("{other:?}"),
        }
    }

    pub fn prepare(&self, infer: v1::Infer, expected: &[u8]) -> Result<u64, v1::Error> {
        let expected = expected.to_vec().into();
        self.call(3, Call::Prepare(v1::Prepare { infer: Some(infer), expected }));
        match self.answer().and_then(|message| message.answer) {
            Some(Answer::Prepared(prepared)) => Ok(prepared.handle),
            Some(Answer::Error(error)) => Err(error),
            other => panic!("{other:?}"),
        }
    }

    fn call_prepared(&self, id: u64, handle: u64, further: &[u64]) {
        self.call(id, Call::CallPrepared(v1::CallPrepared { handle, further: further.to_vec(), trace: None }));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prepared_inferences_have_a_number_and_are_charged() {
    let server = TestServer::new();
    let neighbour = neighbour(&server).await;
    let raw = Raw::welcomed(&server.socket);
    let lease = raw.lease();
    let handles: Vec<u64> = (0..PREPARED_MAX).map(|_| raw.prepare(infer("echo", &lease), b"").unwrap()).collect();
    let refused = raw.prepare(infer("echo", &lease), b"").unwrap_err();
    assert_eq!(refused.message, "256 inferences of this session are prepared, which is all it may have; release some");
    assert_eq!(refused.code, 14);
    raw.call(4, Call::Release(v1::Release { handles: handles[..1].to_vec() }));
    assert!(matches!(raw.answer().unwrap().answer, Some(Answer::Done(_))));
    let fresh = raw.prepare(infer("echo", &lease), b"").unwrap();
    assert!(!handles.contains(&fresh), "a handle is not used again");
    raw.call(5, Call::Release(v1::Release { handles: vec![handles[0], fresh, u64::MAX] }));
    assert_eq!(raw.refusal(), "2 of 3 handles are no prepared inferences of this session");
    drop(raw);
    TestServer::until("the session's end", || server.pools.counts().sessions == 1);
    unhurt(&neighbour).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_mean_nothing_are_errors_and_the_session_goes_on() {
    let server = TestServer::new();
    let raw = Raw::welcomed(&server.socket);
    let lease = raw.lease();
    let stale =
        |error: v1::Error| assert_eq!((error.code, error.message.contains("is stale: ")), (9, true), "{error:?}");
    let error = |raw: &Raw| match raw.answer().unwrap() {
        v1::ServerMessage { id, answer: Some(Answer::Error(error)), .. } => (id, error),
        other => panic!("{other:?}"),
    };
    raw.call(3, Call::Prepare(v1::Prepare::default()));
    assert_eq!(raw.refusal(), "Prepare says no inference");
    let refused = raw.prepare(infer("echo", &lease), b"\xff\xff\xff").unwrap_err();
    assert!(refused.message.starts_with("the expected response is not understood"), "{refused:?}");
    raw.call_prepared(10, 77, &[]);
    let (id, unknown) = error(&raw);
    assert_eq!(id, 10);
    stale(unknown);
    let handle = raw.prepare(infer("echo", &lease), b"").unwrap();
    raw.call_prepared(11, handle, &[handle; 32]);
    assert_eq!(raw.refusal(), "a packet asks for 33 prepared inferences, at most 32 are allowed");
    raw.call_prepared(u64::MAX, handle, &[handle]);
    assert!(raw.refusal().contains("an inference needs an id other than 0"));
    // A lease that was returned is missed; nothing is run, and the handle is gone.
    raw.send(&v1::ClientMessage { id: 12, returned: vec![lease.clone()], call: None }.encode_to_vec());
    assert!(matches!(raw.answer().unwrap().answer, Some(Answer::Done(_))));
    raw.call_prepared(13, handle, &[]);
    stale(error(&raw).1);
    raw.call_prepared(14, handle, &[]);
    let (_, again) = error(&raw);
    assert!(again.message.contains("has none of that handle"), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_of_a_packet_is_answered_whatever_becomes_of_the_others() {
    let server = TestServer::new();
    let raw = Raw::welcomed(&server.socket);
    let lease = raw.lease();
    let (good, held) =
        (raw.prepare(infer("echo", &lease), b"").unwrap(), raw.prepare(infer("held", &lease), b"").unwrap());
    raw.call_prepared(20, good, &[99, held, good]);
    // The model `held` keeps the packet waiting; ids are taken meanwhile, also those of the packet's other calls.
    TestServer::until("the call", || server.held.count() == 1);
    raw.call_prepared(22, good, &[]);
    assert_eq!(raw.refusal(), "an inference of id 22 is in flight; ids must differ");
    server.held.answer();
    let Some(Answer::Answers(answers)) = raw.answer().unwrap().answer else { panic!("not together") };
    let mut seen: Vec<(u64, bool)> = answers
        .messages
        .iter()
        .map(|message| read_answer(message.clone()).unwrap())
        .map(|message| (message.id, matches!(message.answer, Some(Answer::Inference(_)))))
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, [(20, true), (21, false), (22, true), (23, true)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_beyond_what_may_be_in_flight_are_refused_one_by_one() {
    let server = TestServer::new();
    let neighbour = neighbour(&server).await;
    let raw = Raw::welcomed(&server.socket);
    let lease = raw.lease();
    let held = raw.prepare(infer("held", &lease), b"").unwrap();
    for packet in 0..9 {
        raw.call_prepared(100 + 32 * packet, held, &[held; 31]);
    }
    // The ninth packet finds no place: all of its calls are refused, together.
    let Some(Answer::Answers(answers)) = raw.answer().unwrap().answer else { panic!("not together") };
    assert_eq!(answers.messages.len(), 32);
    unhurt(&neighbour).await;
    // Who goes in the midst leaves nothing.
    drop(raw);
    tokio::task::block_in_place(|| {
        TestServer::until("the cancellations", || server.held.cancelled() == server.held.count())
    });
    server.held.answer();
    unhurt(&neighbour).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn long_answers_of_one_packet_take_several() {
    let server = TestServer::new();
    let raw = Raw::welcomed(&server.socket);
    let input = proto::model_infer_request::InferInputTensor {
        name: "IN".into(),
        datatype: "INT32".into(),
        shape: vec![12_000],
        ..Default::default()
    };
    let (inputs, raw_input_contents) = (vec![input], vec![vec![1u8; 48_000].into()]);
    let request =
        proto::ModelInferRequest { model_name: "echo".into(), inputs, raw_input_contents, ..Default::default() };
    let long = v1::Infer { request: request.encode_to_vec().into(), leased_outputs: Vec::new(), trace: None };
    let handle = raw.prepare(long, b"").unwrap();
    raw.call_prepared(50, handle, &[handle; 7]);
    let (mut found, mut packets) = (0, 0);
    while found < 8 {
        packets += 1;
        found += match raw.answer().unwrap().answer {
            Some(Answer::Answers(answers)) => answers.messages.len(),
            Some(Answer::Inference(_)) => 1,
            other => panic!("{other:?}"),
        };
    }
    assert_eq!((found, packets), (8, 4), "two of 48,000 bytes fit a packet");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_described_to_a_session() {
    let server = TestServer::new();
    let raw = Raw::welcomed(&server.socket);
    raw.call(5, Call::DescribeModel(v1::DescribeModel { name: "simple".into(), version: String::new() }));
    let Some(Answer::Described(described)) = raw.answer().unwrap().answer else { panic!("not described") };
    let metadata = proto::ModelMetadataResponse::decode(described.metadata).unwrap();
    let inputs: Vec<_> = metadata.inputs.iter().map(|one| (one.name.as_str(), &one.shape[..])).collect();
    assert_eq!(inputs, [("INPUT0", &[-1, 16][..]), ("INPUT1", &[-1, 16])]);
    raw.call(6, Call::DescribeModel(v1::DescribeModel { name: "simple".into(), version: "9".into() }));
    assert!(raw.refusal().contains("'simple'"));
}
