//! Does a session do what its token allows, and no more?

use nerite_client::{ClientOptions, Code, DataType, Error, Lease, Prepared, Request, Session, SessionOptions, Tensor};
use nerite_shm::LeaseLimits;

use crate::test_server::TestServer;

const TOKENS: &str = r#"
    [[token]]
    name = "all"
    secret = "all"
    scopes = ["infer", "regions", "read"]
    models = ["echo"]
    [[token]]
    name = "infer"
    secret = "infer"
    scopes = ["infer"]
    models = ["echo"]
    [[token]]
    name = "regions"
    secret = "regions"
    scopes = ["regions"]
    [[token]]
    name = "bytes"
    secret = "bytes"
    scopes = ["infer", "regions"]
    [[token]]
    name = "few"
    secret = "few"
    scopes = ["infer", "regions"]
    requests_per_second = 1
    burst = 5
"#;

fn server() -> TestServer {
    server_of(nerite_api::Tokens::from_text(TOKENS).unwrap())
}

fn server_of(tokens: nerite_api::Tokens) -> TestServer {
    let tokens = Some(tokens);
    let limits = LeaseLimits { bytes_max: 64 << 20, session_bytes_max: 16 << 20 };
    TestServer::with(limits, nerite_api::Options { tokens, ..nerite_api::Options::default() })
}

async fn session(server: &TestServer, token: &str) -> Session {
    Session::connect_to(&server.socket, &SessionOptions::default().token(token)).await.unwrap()
}

#[track_caller]
fn check<T: std::fmt::Debug>(outcome: Result<T, Error>, code: Code, text: &str) {
    match outcome {
        Err(Error::Refused(status)) => {
            assert_eq!(status.code, code, "{}", status.message);
            assert!(status.message.contains(text), "{}", status.message);
        }
        other => panic!("{other:?} in place of '{text}'"),
    }
}

fn given(model: &str, count: i32) -> Request {
    let numbers: Vec<i32> = (0..count).collect();
    Request::new(model).input(Tensor::from_slice("IN", &[i64::from(count)], &numbers).unwrap())
}

fn echo(lease: &Lease) -> Request {
    Request::new("echo")
        .input_in_window("IN", DataType::Int32, &[16], lease.window(0, 64))
        .output_in_window("OUT", lease.window(64, 64))
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_memory_and_outputs_in_leases_want_the_scope_regions() {
    let server = server();
    let session = session(&server, "infer").await;
    let no_scope = "token 'infer' has no scope for this call, which wants scope 'regions'";
    check(session.borrow(64).await, Code::Denied, no_scope);
    check(session.register_system_region("r", "/nothing", 0, 64).await, Code::Denied, no_scope);
    check(session.unregister_system_region("").await, Code::Denied, no_scope);
    check(session.system_regions("").await, Code::Denied, "scope 'regions' or 'read'");
    let leased = given("echo", 3).output_leased("OUT", &session);
    check(session.infer(&leased).await, Code::Denied, no_scope);
    check(session.prepare(&leased).await, Code::Denied, no_scope);
    assert!(session.infer(&given("echo", 3)).await.is_ok());
    assert!(session.prepare(&given("echo", 3)).await.unwrap().call().await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn outputs_in_leases_of_a_session_want_it_over_every_protocol() {
    let server = server();
    let owner = session(&server, "all").await;
    let (http, grpc) = server.clients();
    let leased = given("echo", 3).output_leased("OUT", &owner);
    for (token, allowed) in [("infer", false), ("all", true)] {
        let bearer = format!("Bearer {token}");
        let http = http.clone().with_header("authorization", &bearer).unwrap();
        let grpc = grpc.clone().with_header("authorization", &bearer).unwrap();
        for (protocol, outcome) in [("http", http.infer(&leased).await), ("grpc", grpc.infer(&leased).await)] {
            assert_eq!(outcome.is_ok(), allowed, "{protocol} {token} {outcome:?}");
        }
        assert!(http.infer(&given("echo", 3)).await.is_ok() && grpc.infer(&given("echo", 3)).await.is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_bring_their_token_over_http_and_grpc_and_to_their_session() {
    let server = server();
    let (http, grpc) = server.clients_with(&ClientOptions::default().token("all"));
    assert!(http.infer(&given("echo", 3)).await.is_ok() && grpc.infer(&given("echo", 3)).await.is_ok());
    for session in [http.session_at(&server.socket).await, grpc.session_at(&server.socket).await] {
        assert!(session.unwrap().unwrap().borrow(64).await.is_ok());
    }
    let options = ClientOptions::default().token("hidden");
    let shown = nerite_client::http::Client::with_options("localhost:1", &options).unwrap();
    let shown = format!("{options:?} {shown:?} {http:?} {grpc:?}");
    assert!(!shown.contains("hidden") && !shown.contains("Bearer"), "{shown}");
    // A header comes in place of it.
    let http = http.with_header("Authorization", "Bearer regions").unwrap();
    let grpc = grpc.with_header("authorization", "Bearer regions").unwrap();
    check(http.infer(&given("echo", 3)).await, Code::Denied, "token 'regions' has no scope");
    check(grpc.infer(&given("echo", 3)).await, Code::Denied, "token 'regions' has no scope");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_inference_is_asked_for_its_scopes_at_each_call() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.toml");
    std::fs::write(&path, TOKENS).unwrap();
    let tokens = nerite_api::Tokens::from_file(&path).unwrap();
    let server = server_of(tokens);
    let session = session(&server, "all").await;
    let leased = session.prepare(&given("echo", 3).output_leased("OUT", &session)).await.unwrap();
    let plain = session.prepare(&given("echo", 3)).await.unwrap();
    assert!(leased.call().await.is_ok());
    let fewer = TOKENS.replacen(r#"["infer", "regions", "read"]"#, r#"["infer"]"#, 1);
    std::fs::write(&path, fewer).unwrap();
    // The file is looked at once a second.
    for _ in 0..600 {
        if leased.call().await.is_err() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    check(leased.call().await, Code::Denied, "wants scope 'regions'");
    assert!(plain.call().await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_reaches_the_models_of_its_token() {
    let server = server();
    let session = session(&server, "all").await;
    let lease = session.borrow(128).await.unwrap();
    let outside = "token 'all' does not reach model 'apart'";
    check(session.infer(&given("apart", 3)).await, Code::Denied, outside);
    check(session.prepare(&given("apart", 3)).await, Code::Denied, outside);
    check(session.prepare(&given("nothing", 3)).await, Code::Denied, "does not reach model 'nothing'");
    assert!(session.prepare(&echo(&lease)).await.unwrap().call().await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_scope_infer_nothing_is_inferred() {
    let server = server();
    let session = session(&server, "regions").await;
    let lease = session.borrow(128).await.unwrap();
    for outcome in [session.prepare(&echo(&lease)).await.map(drop), session.infer(&echo(&lease)).await.map(drop)] {
        check(outcome, Code::Denied, "wants scope 'infer'");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_prepared_inference_of_a_packet_is_a_request() {
    let server = server();
    let session = session(&server, "few").await;
    let lease = session.borrow(128).await.unwrap();
    let prepared = session.prepare(&echo(&lease)).await.unwrap();
    let all: Vec<&Prepared> = vec![&prepared; 10];
    let outcomes = session.call_many(&all).await.unwrap();
    // A lease, a preparation, and three of the ten. A slow machine gets more back meanwhile.
    let passed = outcomes.iter().take_while(|outcome| outcome.is_ok()).count();
    assert!((3..10).contains(&passed), "{passed}");
    for outcome in outcomes.into_iter().skip(passed) {
        check(outcome, Code::Exhausted, "the quota of token 'few' is used up");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_count_once_they_come() {
    let tokens = nerite_api::Tokens::from_text(TOKENS).unwrap();
    let server = server_of(tokens.clone());
    let session = session(&server, "bytes").await;
    let bytes = || {
        let counts = tokens.counters().tokens.into_iter().find(|counts| counts.name == "bytes").unwrap();
        (counts.bytes_in, counts.bytes_out)
    };
    let words = Tensor::from_strings("IN", &[2], &["ab", "cd"]).unwrap();
    let requests = [(given("echo", 100), 400), (Request::new("words").input(words), 12)];
    let mut all = 0;
    for (request, each) in requests {
        let prepared = session.prepare(&request.output_leased("OUT", &session)).await.unwrap();
        all += each;
        assert_eq!(bytes(), (all, 0), "they come with the preparation");
        for _ in 0..3 {
            prepared.call().await.unwrap();
        }
        assert_eq!(bytes(), (all, 0), "and not again; outputs in leases are no bytes of a message");
    }
}
