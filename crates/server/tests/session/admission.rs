//! Does a request with two faults get the same error over every protocol?

use nerite_client::{
    ClientOptions, Code, DataType, Error, Parameter, RegionRef, Request, Session, SessionOptions, Tensor, grpc, http,
};

use crate::test_server::TestServer;

const TOKENS: &str = r#"
    [[token]]
    name = "all"
    secret = "all"
    scopes = ["infer"]
    [[token]]
    name = "echo"
    secret = "echo"
    scopes = ["infer"]
    models = ["echo"]
    [[token]]
    name = "read"
    secret = "read"
    scopes = ["read"]
    [[token]]
    name = "once"
    secret = "once"
    scopes = ["infer"]
    requests_per_second = 1
    burst = 1
"#;

/// A client of each protocol, with the same token.
struct Clients {
    http: http::Client,
    grpc: grpc::Client,
    session: Session,
}

impl Clients {
    /// The refusals of the request.
    async fn refusals(&self, request: &Request) -> Vec<(&'static str, Error)> {
        let mut stream = self.grpc.stream();
        // A stream that is refused ends before it is sent.
        let _ = stream.send(request).await;
        let streamed = async { stream.next().await?.expect("an answer").outcome };
        let outcomes = [
            ("http", self.http.infer(request).await.map(drop)),
            ("grpc", self.grpc.infer(request).await.map(drop)),
            ("stream", streamed.await.map(drop)),
            ("session", self.session.infer(request).await.map(drop)),
            ("prepare", self.session.prepare(request).await.map(drop)),
        ];
        outcomes.map(|(protocol, outcome)| (protocol, outcome.expect_err(protocol))).into()
    }
}

/// A request for a model whose inputs are right for `echo`.
fn right(model: &str) -> Request {
    Request::new(model).input(Tensor::from_slice("IN", &[2], &[1i32, 2]).unwrap())
}

/// As [`right`], with a parameter whose form is wrong.
fn misshapen(model: &str) -> Request {
    right(model).parameter("sequence_id", Parameter::String("x".repeat(129)))
}

/// A request with an input of the wrong type.
fn unfit(model: &str) -> Request {
    Request::new(model).input(Tensor::from_slice("IN", &[1], &[1.0f32]).unwrap())
}

/// A request with an input of the wrong type, in a region that does not exist.
fn unfit_in_no_region(model: &str) -> Request {
    let nowhere = RegionRef { name: "nowhere".into(), offset: 0, byte_size: 8 };
    Request::new(model).input_in_window("IN", DataType::Fp32, &[2], nowhere)
}

/// The earliest fault is told, in the order of `nerite_api`'s admission.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_of_two_faults_is_reported_over_every_protocol() {
    let tokens = Some(nerite_api::Tokens::from_text(TOKENS).unwrap());
    let server = TestServer::explicit_with(nerite_api::Options { tokens, ..nerite_api::Options::default() });
    let (http, grpc) = server.clients();
    let mut clients = Vec::new();
    for token in ["all", "echo", "read"] {
        let bearer = format!("Bearer {token}");
        clients.push(Clients {
            http: http.clone().with_header("authorization", &bearer).unwrap(),
            grpc: grpc.clone().with_header("authorization", &bearer).unwrap(),
            session: Session::connect_to(&server.socket, &SessionOptions::default().token(token)).await.unwrap(),
        });
    }
    let [all, echo, read] = &clients[..] else { unreachable!() };
    // `held` is in the repository and not loaded.
    let cases = [
        (read, right("nothing"), Code::Denied, "wants scope 'infer'"),
        (read, misshapen("echo"), Code::Denied, "wants scope 'infer'"),
        (echo, right("nothing"), Code::Denied, "does not reach model 'nothing'"),
        (echo, misshapen("held"), Code::Denied, "does not reach model 'held'"),
        (echo, right("nothing").version(7), Code::Denied, "does not reach model 'nothing'"),
        (all, right("nothing").version(7), Code::NotFound, "unknown model: 'nothing'"),
        (all, misshapen("nothing"), Code::NotFound, "unknown model: 'nothing'"),
        (all, unfit_in_no_region("nothing"), Code::NotFound, "unknown model: 'nothing'"),
        (all, misshapen("echo").version(7), Code::NotFound, "version 7 is not found"),
        (all, misshapen("held"), Code::NotFound, "unknown model: 'held'"),
        (all, unfit("held"), Code::NotFound, "unknown model: 'held'"),
        (all, misshapen("echo"), Code::Unsupported, "string correlation ID cannot be longer"),
        (all, unfit_in_no_region("echo"), Code::NotFound, "shared memory region: 'nowhere'"),
        (all, unfit("echo"), Code::InvalidArg, "data-type is 'FP32'"),
    ];
    for (clients, request, code, text) in &cases {
        check(clients.refusals(request).await, *code, &[text]);
    }
    server.api.begin_stopping();
    let stopping = ["Server is stopping", "GRPC server is shutting down"];
    check(read.refusals(&right("nothing")).await, Code::Denied, &["wants scope 'infer'"]);
    for request in [right("nothing"), misshapen("echo"), right("held"), unfit("echo"), right("echo")] {
        check(all.refusals(&request).await, Code::Unavailable, &stopping);
        check(echo.refusals(&request).await, Code::Unavailable, &stopping);
    }
}

#[track_caller]
fn check(refusals: Vec<(&str, Error)>, code: Code, texts: &[&str]) {
    for (protocol, refusal) in refusals {
        let text_of_refusal = refusal.to_string();
        assert!(
            texts.iter().any(|text| text_of_refusal.contains(text)),
            "{protocol}: {text_of_refusal}, and not one of {texts:?}"
        );
        // An error within a stream has no code.
        assert!(refusal.code() == Some(code) || protocol == "stream", "{protocol}: {refusal:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_comes_before_the_model() {
    let tokens = Some(nerite_api::Tokens::from_text(TOKENS).unwrap());
    let server = TestServer::explicit_with(nerite_api::Options { tokens, ..nerite_api::Options::default() });
    let (http, grpc) = server.clients_with(&ClientOptions::default().token("once"));
    let session = Session::connect_to(&server.socket, &SessionOptions::default().token("once")).await.unwrap();
    // The quota is used up by the first, whatever becomes of it.
    drop(http.infer(&right("nothing")).await);
    for refused in [
        http.infer(&misshapen("nothing")).await,
        grpc.infer(&misshapen("nothing")).await,
        session.infer(&misshapen("nothing")).await,
    ] {
        assert!(refused.as_ref().is_err_and(|error| error.to_string().contains("'once'")), "{refused:?}");
    }
}
