//! What if the requests of a client made threads wait, so that models run on copies of its memory?

use std::time::Duration;

use nerite_client::{DataType, Error, Lease, Request, Response, Session, Tensor, grpc, http};
use nerite_memory::{Reason, copied_bytes};
use nerite_watchdog::{MARKING_NS, noting_waits};

use crate::test_server::TestServer;

/// A server on which a thread waited for a request of this user.
fn stalled() -> TestServer {
    let server = TestServer::new();
    noting_waits(server.api.flow(), || std::thread::sleep(Duration::from_nanos(2 * MARKING_NS)));
    assert!(server.api.flow().is_stalling());
    server
}

fn in_windows(model: &str, lease: &Lease) -> Request {
    Request::new(model)
        .input_in_window("IN", DataType::Int32, &[16], lease.window(0, 64))
        .output_in_window("OUT", lease.window(64, 64))
}

fn numbers(model: &str, numbers: &[i32]) -> Request {
    Request::new(model).input(Tensor::from_slice("IN", &[numbers.len() as i64], numbers).unwrap())
}

/// The four ways to send a request.
const WAYS: usize = 4;

async fn by_way(
    (http, grpc): &(http::Client, grpc::Client),
    session: &Session,
    request: &Request,
    way: usize,
) -> Response {
    let response = match way {
        0 => http.infer(request).await,
        1 => grpc.infer(request).await,
        2 => session.infer(request).await,
        _ => session.prepare(request).await.unwrap().call().await,
    };
    response.unwrap()
}

fn staged_requests(server: &TestServer) -> u64 {
    server.api.metrics_report().front_busy.unwrap().staged_requests
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_of_asking_gets_the_same_answer() {
    let server = stalled();
    let session = Session::connect(&server.socket).await.unwrap();
    let (clients, lease) = (server.clients(), session.borrow(128).await.unwrap());
    for (number, model) in (0i32..).zip(["echo", "apart"]) {
        let (before, copied) = (staged_requests(&server), copied_bytes(Reason::Staged));
        lease.write(0, &[number; 16]).unwrap();
        for way in 0..WAYS {
            lease.write(64, &[-1i32; 16]).unwrap();
            let response = by_way(&clients, &session, &in_windows(model, &lease), way).await;
            let output = response.output("OUT").unwrap();
            assert_eq!((&output.shape[..], output.is_placed()), (&[16][..], true));
            assert_eq!(lease.view::<i32>(64, 16).unwrap().to_vec(), [number; 16], "{model}, way {way}");
        }
        assert!(staged_requests(&server) >= before + 4, "{model}");
        assert!(copied_bytes(Reason::Staged) >= copied + 4 * 128, "{model}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn outputs_reach_leases_that_the_server_chooses() {
    let server = stalled();
    let session = Session::connect(&server.socket).await.unwrap();
    let clients = server.clients();
    let given: Vec<i32> = (0..30_000).collect();
    for model in ["echo", "apart"] {
        let before = staged_requests(&server);
        let request = numbers(model, &given).output_leased("OUT", &session);
        for way in 0..WAYS {
            let response = by_way(&clients, &session, &request, way).await;
            assert_eq!(response.output("OUT").unwrap().to_vec::<i32>().unwrap(), given);
        }
        assert!(staged_requests(&server) >= before + 4, "{model}");
    }
    let words = Request::new("words").input(Tensor::from_strings("IN", &[2], &["one", ""]).unwrap());
    let response = session.infer(&words.output_leased("OUT", &session)).await.unwrap();
    assert_eq!(response.output("OUT").unwrap().strings().unwrap(), [&b"one"[..], b""]);
}

/// What the model reads if its client changes the input after the model got the request.
async fn read_late(server: &TestServer) -> Vec<i32> {
    let session = Session::connect(&server.socket).await.unwrap();
    let lease = session.borrow(128).await.unwrap();
    lease.write(0, &[1i32; 16]).unwrap();
    let request = in_windows("held", &lease);
    let own = session.clone();
    let answer = tokio::spawn(async move { own.infer(&request).await.map(drop) });
    tokio::task::block_in_place(|| TestServer::until("the request", || server.held.count() == 1));
    lease.write(0, &[2i32; 16]).unwrap();
    server.held.answer();
    answer.await.unwrap().unwrap();
    lease.view::<i32>(64, 16).unwrap().to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_touches_no_memory_of_such_a_client_and_that_of_others_in_place() {
    assert_eq!(read_late(&TestServer::new()).await, [2; 16]);
    assert_eq!(read_late(&stalled()).await, [1; 16]);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_have_the_same_words() {
    for server in [TestServer::new(), stalled()] {
        let session = Session::connect(&server.socket).await.unwrap();
        let lease = session.borrow(64).await.unwrap();
        let small = numbers("echo", &[1; 16]).output_in_window("OUT", lease.window(0, 32));
        check_refused(&session, &small, "should be at least 64 bytes to hold the results").await;
        let beyond = Request::new("echo").input_in_window("IN", DataType::Int32, &[16], lease.window(4090, 64));
        check_refused(&session, &beyond, "Invalid offset + byte size for shared memory region: 'lease-").await;
    }
}

async fn check_refused(session: &Session, request: &Request, text: &str) {
    match session.infer(request).await {
        Err(Error::Refused(status)) => assert!(status.message.contains(text), "{}", status.message),
        other => panic!("{other:?} in place of '{text}'"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_of_a_decoupled_model_come_in_their_order() {
    let server = stalled();
    let session = Session::connect(&server.socket).await.unwrap();
    let given: Vec<i32> = (1..40).chain([-1, 2]).collect();
    let request = numbers("several", &given).output_leased("OUT", &session);
    let mut responses = session.infer_stream(&request).await.unwrap();
    for number in given {
        match responses.next().await {
            Ok(response) => {
                let output = response.unwrap().outputs[0].to_vec::<i32>().unwrap();
                assert_eq!(output, vec![number; usize::try_from(number).unwrap()]);
            }
            Err(error) => assert!(number < 0, "{number}: {error}"),
        }
    }
    assert!(responses.next().await.unwrap().is_none());
}
