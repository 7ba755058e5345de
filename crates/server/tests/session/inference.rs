//! Does an inference find its tensors in leases, and its client the results?

use nerite_client::{DataType, Error, Lease, Output, PreparedRequest, Request, Session, Tensor};

use crate::test_server::TestServer;

fn sums(lease: &Lease) -> Request {
    Request::new("simple").input_in_window("INPUT0", DataType::Int32, &[1, 16], lease.window(0, 64)).input_in_window(
        "INPUT1",
        DataType::Int32,
        &[1, 16],
        lease.window(64, 64),
    )
}

async fn filled(session: &Session) -> Lease {
    let lease = session.borrow(256).await.unwrap();
    lease.edit(0, 16, |mut numbers: nerite_client::CellsMut<'_, i32>| numbers.fill(5)).unwrap();
    lease.write(64, &[2i32; 16]).unwrap();
    lease
}

#[tokio::test(flavor = "multi_thread")]
async fn sums_are_found_where_the_client_wanted_them() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let lease = filled(&session).await;
    let request = sums(&lease)
        .output_in_window("OUTPUT0", lease.window(128, 64))
        .output_in_window("OUTPUT1", lease.window(192, 64));
    let request = PreparedRequest::new(&request, &[]);
    for _ in 0..50 {
        let response = session.infer_prepared(&request).await.unwrap();
        assert!(response.outputs.iter().all(Output::is_placed));
        assert_eq!(lease.view::<i32>(128, 16).unwrap().to_vec(), [7; 16]);
        assert_eq!(lease.view::<i32>(192, 16).unwrap().to_vec(), [3; 16]);
        lease.write(128, &[0i32; 32]).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_finds_places_for_outputs_of_unknown_size() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let lease = filled(&session).await;
    for model in ["echo", "apart"] {
        let request = Request::new(model).input_in_window("IN", DataType::Int32, &[40], lease.window(0, 160));
        let response = session.infer_leased(&request, &["OUT"]).await.unwrap();
        let output = response.output("OUT").unwrap();
        assert_eq!(output.to_vec::<i32>().unwrap(), lease.view::<i32>(0, 40).unwrap().to_vec(), "{model}");
        // The view keeps the lease, although the response and the session's handle go.
        let kept = output.clone();
        drop(response);
        session.infer_leased(&request, &["OUT"]).await.unwrap();
        assert_eq!(kept.to_vec::<i32>().unwrap()[..32], [[5; 16], [2; 16]].concat());
    }
    // The input, the output that was kept, and one that came and went; a fourth if the last return was still on its way.
    assert!(session.in_use().await.unwrap().leases <= 4, "what was returned is lent again");
}

#[tokio::test(flavor = "multi_thread")]
async fn small_tensors_may_travel_in_the_packet() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    for count in [1, 1000, 32_000] {
        let numbers: Vec<i32> = (0..count).collect();
        let request = Request::new("echo").input(Tensor::from_slice("IN", &[i64::from(count)], &numbers).unwrap());
        let response = session.infer(&request).await.unwrap();
        assert_eq!(response.output("OUT").unwrap().to_vec::<i32>().unwrap(), numbers);
    }
    let request = Request::new("echo").input(Tensor::from_slice("IN", &[100_000], &vec![0i32; 100_000]).unwrap());
    let error = session.infer(&request).await.unwrap_err();
    assert!(error.to_string().contains("put its tensors in leases"), "{error}");
    let lease = session.borrow(400_000).await.unwrap();
    let request = Request::new("echo").input_in_window("IN", DataType::Int32, &[100_000], lease.window(0, 400_000));
    let error = session.infer(&request).await.unwrap_err();
    assert!(error.to_string().contains("ask for its outputs in leases"), "{error}");
    assert_eq!(
        session.infer_leased(&request, &["OUT"]).await.unwrap().outputs[0].to_vec::<i32>().unwrap().len(),
        100_000
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_reads_what_the_client_wrote_after_it_asked() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let lease = session.borrow(4096).await.unwrap();
    let request = Request::new("held")
        .input_in_window("IN", DataType::Int32, &[16], lease.window(0, 64))
        .output_in_window("OUT", lease.window(64, 64));
    let running = tokio::spawn({
        let session = session.clone();
        async move { session.infer(&request).await }
    });
    tokio::task::block_in_place(|| TestServer::until("the request", || server.held.count() == 1));
    lease.write(0, &[77i32; 16]).unwrap();
    server.held.answer();
    running.await.unwrap().unwrap();
    assert_eq!(lease.view::<i32>(64, 16).unwrap().to_vec(), [77; 16], "a canary that a hidden copy would have missed");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_callers_share_one_session() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let callers = (0..32i32).map(|at| {
        let session = session.clone();
        tokio::spawn(async move {
            for round in 0..40 {
                let number = at * 1000 + round;
                let request = Request::new("echo").input(Tensor::from_slice("IN", &[3], &[number; 3]).unwrap());
                let response = session.infer_leased(&request, &["OUT"]).await.unwrap();
                assert_eq!(response.outputs[0].to_vec::<i32>().unwrap(), [number; 3]);
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    assert!(session.in_use().await.unwrap().leases <= 64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_who_stops_waiting_cancels_and_others_go_on() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let held = Request::new("held").input(Tensor::from_slice("IN", &[1], &[1i32]).unwrap());
    let waiting = tokio::spawn({
        let (session, held) = (session.clone(), held.clone());
        async move { session.infer_leased(&held, &["OUT"]).await.map(drop) }
    });
    tokio::task::block_in_place(|| TestServer::until("the request", || server.held.count() == 1));
    let echo = Request::new("echo").input(Tensor::from_slice("IN", &[1], &[2i32]).unwrap());
    session.infer(&echo).await.unwrap();
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    tokio::task::block_in_place(|| TestServer::until("the cancellation", || server.held.cancelled() == 1));
    server.held.answer();
    session.infer(&echo).await.unwrap();
    assert_eq!(session.in_use().await.unwrap().bytes, session.in_use().await.unwrap().leases * 4096);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_come_in_the_words_of_the_other_protocols() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let lease = session.borrow(64).await.unwrap();
    let small = Request::new("echo")
        .input(Tensor::from_slice("IN", &[16], &[1i32; 16]).unwrap())
        .output_in_window("OUT", lease.window(0, 32));
    check(&session, &small, "should be at least 64 bytes to hold the results").await;
    let beyond = Request::new("echo").input_in_window("IN", DataType::Int32, &[16], lease.window(4090, 64));
    check(&session, &beyond, "Invalid offset + byte size for shared memory region: 'lease-").await;
    let unknown = Request::new("nothing").input(Tensor::from_slice("IN", &[1], &[1i32]).unwrap());
    check(&session, &unknown, "Request for unknown model: 'nothing' is not found").await;
}

async fn check(session: &Session, request: &Request, text: &str) {
    match session.infer(request).await {
        Err(Error::Refused(status)) => assert!(status.message.contains(text), "{}", status.message),
        other => panic!("{other:?} in place of '{text}'"),
    }
}
