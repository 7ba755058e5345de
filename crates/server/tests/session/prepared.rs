//! Is a prepared inference what an inference is, for less?

use nerite_api::Target;
use nerite_client::{DataType, Error, Lease, Prepared, Request, Session, Tensor};
use nerite_request::setting::LoadOptions;
use nerite_request::{Cancel, InferInput, InferRequest, Response, Source};

use crate::test_server::TestServer;

fn echo(lease: &Lease, model: &str) -> Request {
    Request::new(model)
        .input_in_window("IN", DataType::Int32, &[16], lease.window(0, 64))
        .output_in_window("OUT", lease.window(64, 64))
}

async fn check(lease: &Lease, prepared: &Prepared, number: i32) {
    lease.write(0, &[number; 16]).unwrap();
    let response = prepared.call().await.unwrap();
    let output = response.output("OUT").unwrap();
    assert_eq!((output.datatype, &output.shape[..], output.is_placed()), (DataType::Int32, &[16][..], true));
    assert_eq!((response.model.as_str(), response.version.as_str()), ("echo", "1"));
    assert_eq!(lease.view::<i32>(64, 16).unwrap().to_vec(), [number; 16]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_reads_what_lies_there_then() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let lease = session.borrow(128).await.unwrap();
    let prepared = session.prepare(&echo(&lease, "echo")).await.unwrap();
    for number in 0..50 {
        check(&lease, &prepared, number).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_calls_are_answered_each_with_its_own() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let mut calls = Vec::new();
    for number in 0..70i32 {
        let lease = session.borrow(128).await.unwrap();
        lease.write(0, &[number; 16]).unwrap();
        calls.push((session.prepare(&echo(&lease, "echo")).await.unwrap(), lease));
    }
    let all: Vec<&Prepared> = calls.iter().map(|(prepared, _)| prepared).collect();
    for _ in 0..3 {
        for (_, lease) in &calls {
            lease.write(64, &[-1i32; 16]).unwrap();
        }
        let outcomes = session.call_many(&all).await.unwrap();
        assert_eq!(outcomes.len(), 70);
        assert!(outcomes.iter().all(Result::is_ok));
        for (number, (_, lease)) in (0i32..).zip(&calls) {
            assert_eq!(lease.view::<i32>(64, 16).unwrap().to_vec(), [number; 16]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_are_in_flight_and_each_may_be_given_up() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let lease = session.borrow(128).await.unwrap();
    let prepared = session.prepare(&echo(&lease, "held")).await.unwrap();
    let prepare = || {
        let prepared = prepared.clone();
        tokio::spawn(async move { prepared.call().await })
    };
    let (first, second, third) = (prepare(), prepare(), prepare());
    tokio::task::block_in_place(|| TestServer::until("the calls", || server.held.count() == 3));
    second.abort();
    tokio::task::block_in_place(|| TestServer::until("the cancellation", || server.held.cancelled() == 1));
    lease.write(0, &[7i32; 16]).unwrap();
    server.held.answer();
    assert!(first.await.unwrap().is_ok() && third.await.unwrap().is_ok());
    assert_eq!(lease.view::<i32>(64, 16).unwrap().to_vec(), [7; 16]);
}

#[tokio::test(flavor = "multi_thread")]
async fn outputs_of_unknown_size_and_inline_inputs_are_prepared_as_well() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let given = Tensor::from_slice("IN", &[3], &[1i32, 2, 3]).unwrap();
    for request in
        [Request::new("apart").input(given.clone()).output_leased("OUT", &session), Request::new("echo").input(given)]
    {
        let prepared = session.prepare(&request).await.unwrap();
        for _ in 0..5 {
            assert_eq!(prepared.call().await.unwrap().output("OUT").unwrap().to_vec::<i32>().unwrap(), [1, 2, 3]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_are_checked_at_each_call() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let lease = session.borrow(64).await.unwrap();
    let request = Request::new("words")
        .input_in_window("IN", DataType::Bytes, &[2], lease.window(0, 12))
        .output_leased("OUT", &session);
    lease.write(0, b"\x02\0\0\0ab\x02\0\0\0cd").unwrap();
    let prepared = session.prepare(&request).await.unwrap();
    assert_eq!(prepared.call().await.unwrap().output("OUT").unwrap().strings().unwrap(), [&b"ab"[..], b"cd"]);
    lease.write(0, b"\x01\0\0\0a\x03\0\0\0bcd").unwrap();
    assert_eq!(prepared.call().await.unwrap().output("OUT").unwrap().strings().unwrap(), [&b"a"[..], b"bcd"]);
    lease.write(0, &[0xffu8; 12]).unwrap();
    let error = prepared.call().await.unwrap_err().to_string();
    assert!(error.contains("incomplete string data"), "{error}");
    lease.write(0, b"\x02\0\0\0ab\x02\0\0\0cd").unwrap();
    assert!(prepared.call().await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_comes_when_it_is_prepared() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let lease = session.borrow(64).await.unwrap();
    let beyond = Request::new("echo").input_in_window("IN", DataType::Int32, &[16], lease.window(4090, 64));
    let unknown = Request::new("nothing").input_in_window("IN", DataType::Int32, &[16], lease.window(0, 64));
    let short = Request::new("echo").input_in_window("IN", DataType::Int32, &[16], lease.window(0, 60));
    let cases =
        [(beyond, "Invalid offset + byte size"), (unknown, "'nothing' is not found"), (short, "byte size mismatch")];
    for (request, text) in cases {
        match session.prepare(&request).await {
            Err(Error::Refused(status)) => assert!(status.message.contains(text), "{}", status.message),
            other => panic!("{other:?} in place of '{text}'"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_was_loaded_anew_is_asked_all_the_same() {
    let server = TestServer::explicit();
    let session = Session::connect(&server.socket).await.unwrap();
    let lease = session.borrow(128).await.unwrap();
    let prepared = session.prepare(&echo(&lease, "echo")).await.unwrap();
    check(&lease, &prepared, 1).await;
    check(&lease, &prepared, 2).await;
    let before = prepared.call().await.unwrap();
    server.api.unload("echo", false).await.unwrap();
    server.api.load("echo", LoadOptions::default()).await.unwrap();
    check(&lease, &prepared, 3).await;
    assert_eq!(prepared.call().await.unwrap().outputs.len(), before.outputs.len());
    server.api.unload("echo", false).await.unwrap();
    let error = prepared.call().await.unwrap_err().to_string();
    assert!(error.contains("echo"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_region_that_was_unregistered_is_missed_and_found_again() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let key = format!("/nerite-prepared-{}", std::process::id());
    let _region = nerite_shm::OwnedRegion::create(&key, 4096).unwrap();
    session.register_system_region("r", &key, 0, 4096).await.unwrap();
    let window = |offset| nerite_client::RegionRef { name: "r".into(), offset, byte_size: 64 };
    let request = Request::new("echo")
        .input_in_window("IN", DataType::Int32, &[16], window(0))
        .output_in_window("OUT", window(64));
    let prepared = session.prepare(&request).await.unwrap();
    prepared.call().await.unwrap();
    session.unregister_system_region("r").await.unwrap();
    let error = prepared.call().await.unwrap_err().to_string();
    assert!(error.contains("Unable to find shared memory region: 'r'"), "{error}");
    session.register_system_region("r", &key, 0, 4096).await.unwrap();
    prepared.call().await.unwrap();
}

/// The client prepares again by itself, so this asks as the session does.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_was_returned_is_missed_until_it_is_lent_again() {
    let server = TestServer::new();
    let (scope, other) = (server.api.open_scope(), server.api.open_scope());
    let lease = scope.borrow(128).unwrap().lease.name().to_string();
    let window = |offset| nerite_request::RegionRef { name: lease.as_str().into(), offset, byte_size: 64 };
    let input = InferInput {
        name: "IN".into(),
        datatype: nerite_tensor::DataType::Int32,
        shape: [16].into_iter().collect(),
        source: Source::Region(window(0)),
    };
    let output = nerite_request::InferRequestedOutput {
        name: "OUT".into(),
        region: Some(window(64)),
        session: None,
        classes: 0,
    };
    let outputs = [output].into_iter().collect();
    let request =
        InferRequest { model: "echo".into(), inputs: vec![input].into(), outputs, ..InferRequest::default() }.into();
    let prepared = scope.prepare(&server.api.accept(Target::of_any("echo", "")).unwrap(), request, Vec::new()).unwrap();
    let call = || {
        let (to, answers) = std::sync::mpsc::channel();
        let sink = move |response: Response, _| to.send(response.into_content()).unwrap();
        scope.call(&prepared, None, Cancel::new(), None, sink)?;
        Ok::<bool, nerite_api::CallError>(answers.recv().unwrap().unwrap().unwrap().outputs[0].placed)
    };
    assert!(call().unwrap());
    scope.give_back(&lease).unwrap();
    let called = call();
    assert!(matches!(&called, Err(nerite_api::CallError::Stale(why)) if why.contains(&lease)), "{called:?}");
    assert_ne!(other.borrow(128).unwrap().lease.name().to_string(), lease);
    assert!(call().is_err());
    assert_eq!(scope.borrow(128).unwrap().lease.name().to_string(), lease);
    assert!(call().unwrap());
}

/// The client prepares again by itself, so this asks as the session does.
#[tokio::test(flavor = "multi_thread")]
async fn instances_that_come_and_go_make_no_inference_stale() {
    let server = TestServer::explicit();
    let scope = server.api.open_scope();
    let input = InferInput {
        name: "IN".into(),
        datatype: nerite_tensor::DataType::Int32,
        shape: [1].into_iter().collect(),
        source: Source::Inline(nerite_memory::Buffer::from(vec![7, 0, 0, 0])),
    };
    let request = InferRequest { model: "echo".into(), inputs: vec![input].into(), ..InferRequest::default() }.into();
    let prepared = scope.prepare(&server.api.accept(Target::of_any("echo", "")).unwrap(), request, Vec::new()).unwrap();
    for (before, after) in [("count: 4", "count: 6"), ("count: 6", "count: 1")] {
        server.configure("echo", before, after);
        server.api.load("echo", LoadOptions::default()).await.unwrap();
        let (to, answers) = std::sync::mpsc::channel();
        let sink = move |response: Response, _| to.send(response.into_content()).unwrap();
        scope.call(&prepared, None, Cancel::new(), None, sink).unwrap();
        let answer = answers.recv().unwrap().unwrap().unwrap();
        assert_eq!(answer.outputs[0].data.private_bytes(), Some(&[7, 0, 0, 0][..]), "{after}");
    }
    server.api.unload("echo", false).await.unwrap();
    server.api.load("echo", LoadOptions::default()).await.unwrap();
    let called = scope.call(&prepared, None, Cancel::new(), None, |_, _| ());
    assert!(matches!(called, Err(nerite_api::CallError::Stale(_))), "{called:?}");
}
