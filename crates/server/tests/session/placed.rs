//! Do outputs whose places the server chooses reach the client over every protocol, and their leases the session again?

use std::future::Future;
use std::task::Poll;

use nerite_client::{Code, DataType, Error, Request, Response, Session, Tensor, TensorBuffer, grpc, http};

use crate::test_server::TestServer;

fn numbers(model: &str, numbers: &[i32]) -> Request {
    Request::new(model).input(Tensor::from_slice("IN", &[numbers.len() as i64], numbers).unwrap())
}

/// One request by each way there is.
async fn by_all(
    (http, grpc): &(http::Client, grpc::Client),
    session: &Session,
    request: &Request,
) -> Vec<Result<Response, Error>> {
    vec![http.infer(request).await, grpc.infer(request).await, session.infer(request).await]
}

async fn leases(session: &Session) -> u64 {
    session.in_use().await.unwrap().leases
}

#[tokio::test(flavor = "multi_thread")]
async fn one_request_finds_its_output_over_every_protocol() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let clients = server.clients();
    for (model, count) in [("echo", 1), ("echo", 30_000), ("apart", 5), ("apart", 30_000)] {
        let given: Vec<i32> = (0..count).collect();
        for output in [Some(&session), None] {
            let request = numbers(model, &given).output_leased("OUT", output);
            for response in by_all(&clients, &session, &request).await {
                let response = response.unwrap();
                assert_eq!(response.output("OUT").unwrap().to_vec::<i32>().unwrap(), given, "{model}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn strings_are_read_in_a_lease() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let clients = server.clients();
    let long = "x".repeat(9000);
    let words = ["", "two", &long];
    let given = Tensor::from_strings("IN", &[3], &words).unwrap();
    let sent = given.bytes().clone();
    let request = Request::new("words").input(given).output_leased("OUT", &session);
    for response in by_all(&clients, &session, &request).await {
        let response = response.unwrap();
        let output = response.output("OUT").unwrap();
        assert_eq!(output.bytes().unwrap()[..], sent[..]);
        assert_eq!(output.strings().unwrap(), words.map(str::as_bytes));
    }
    assert!(leases(&session).await > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_that_is_kept_keeps_its_lease_and_others_are_lent_again() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let (http, grpc) = server.clients();
    let request = |number| numbers("echo", &vec![number; 5000]).output_leased("OUT", &session);
    let kept = http.infer(&request(7)).await.unwrap().outputs.remove(0);
    for number in 0..40 {
        for response in [http.infer(&request(number)).await, grpc.infer(&request(number)).await] {
            assert_eq!(response.unwrap().outputs[0].to_vec::<i32>().unwrap(), vec![number; 5000]);
        }
    }
    assert_eq!(kept.to_vec::<i32>().unwrap(), vec![7; 5000]);
    // Returns wait in groups of some for the next message.
    assert!(leases(&session).await <= 12, "{}", leases(&session).await);
    drop(session);
    assert_eq!(kept.to_vec::<i32>().unwrap(), vec![7; 5000]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_waits_for_comes_back() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let (http, grpc) = server.clients();
    let request = numbers("held", &vec![1; 5000]).output_leased("OUT", &session);
    for over_http in [true, false] {
        let (http, grpc, request) = (http.clone(), grpc.clone(), request.clone());
        let answer = tokio::spawn(async move {
            if over_http { http.infer(&request).await } else { grpc.infer(&request).await }.map(drop)
        });
        TestServer::until("the request", || server.held.count() == 1);
        answer.abort();
        assert!(answer.await.unwrap_err().is_cancelled());
        // The packet is out: it was sent as the request was dropped. Whether it was read, the next answer tells.
        session.in_use().await.unwrap();
        server.held.answer();
        TestServer::until("the lease", || server.pools.counts().leases == server.pools.counts().idle);
    }
    let response = http.infer(&numbers("echo", &[3]).output_leased("OUT", &session)).await.unwrap();
    assert_eq!(response.outputs[0].to_vec::<i32>().unwrap(), [3], "the session goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_ends_in_flight_fails_its_requests() {
    let server = TestServer::new();
    let (http, _) = server.clients();
    let request = {
        let session = Session::connect(&server.socket).await.unwrap();
        let request = numbers("held", &vec![1; 5000]).output_leased("OUT", &session);
        let other = Session::connect(&server.socket).await.unwrap();
        // The request keeps its session; what ends here is the other one.
        drop(other);
        request
    };
    let answer = tokio::spawn(async move { http.infer(&request).await.map(drop) });
    TestServer::until("the request", || server.held.count() == 1);
    drop(server.handle.stop());
    TestServer::until("the end", || server.pools.counts().sessions == 0);
    server.held.answer();
    let error = answer.await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(Code::Unavailable), "{error}");
    assert!(error.to_string().contains("the session has ended"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_knows_the_session_of_its_own_server() {
    let (server, other) = (TestServer::new(), TestServer::new());
    let (http, grpc) = server.clients();
    let session = Session::connect(&server.socket).await.unwrap();
    let id = session.terms().server_id.clone();
    assert_eq!(id.len(), 32);
    for metadata in [http.server_metadata().await.unwrap(), grpc.server_metadata().await.unwrap()] {
        assert_eq!(metadata.server_id(), Some(&*id));
    }
    assert_ne!(Session::connect(&other.socket).await.unwrap().terms().server_id, id);
    for (socket, is_its_own) in [(&server.socket, true), (&other.socket, false), (&server.socket.join("none"), false)] {
        assert_eq!(http.session_at(socket).await.unwrap().is_some(), is_its_own);
        assert_eq!(grpc.session_at(socket).await.unwrap().is_some(), is_its_own);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buffer_is_a_lease_where_there_is_room_and_travels_elsewhere() {
    let server = TestServer::new();
    let clients = server.clients();
    let session = Session::connect(&server.socket).await.unwrap();
    // The largest does not fit the 16 MiB of a session, nor a packet of it.
    for (with, count, shared) in [(Some(&session), 1000, true), (None, 1000, false), (Some(&session), 5 << 20, false)] {
        let mut buffer = TensorBuffer::new(with, DataType::Int32, &[count]).await.unwrap();
        buffer.fill(|mut numbers: nerite_client::CellsMut<'_, i32>| numbers.fill(count as i32)).unwrap();
        assert_eq!(buffer.is_shared(), shared);
        let request = Request::new("echo").input_buffer("IN", &buffer).output_leased("OUT", with);
        // The request keeps what its input lies in.
        drop(buffer);
        for response in [clients.0.infer(&request).await, clients.1.infer(&request).await] {
            let response = response.unwrap();
            let found = response.output("OUT").unwrap().to_vec::<i32>().unwrap();
            assert!(found.len() == count as usize && found.iter().all(|number| i64::from(*number) == count));
        }
    }
    let words = TensorBuffer::of_strings(&session, &[2], &["one", ""]).await.unwrap();
    let request = Request::new("words").input_buffer("IN", &words).output_leased("OUT", &session);
    for response in by_all(&clients, &session, &request).await {
        assert_eq!(response.unwrap().output("OUT").unwrap().strings().unwrap(), [&b"one"[..], b""]);
    }
}

async fn streamed(session: &Session, request: &Request) -> Vec<Result<Vec<i32>, String>> {
    let mut responses = session.infer_stream(request).await.unwrap();
    let mut found = Vec::new();
    loop {
        match responses.next().await {
            Ok(None) => return found,
            Ok(Some(response)) => found.push(Ok(response.outputs[0].to_vec::<i32>().unwrap())),
            Err(error) => found.push(Err(error.to_string())),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decoupled_model_answers_a_session_any_number_of_times() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    for leased in [Some(&session), None] {
        let request = |given: &[i32]| numbers("several", given).output_leased("OUT", leased);
        assert_eq!(streamed(&session, &request(&[])).await, []);
        let expect = [Ok(vec![3; 3]), Err("a negative number".to_owned()), Ok(vec![5; 5]), Ok(vec![])];
        assert_eq!(streamed(&session, &request(&[3, -1, 5, 0])).await, expect);
        let large = streamed(&session, &request(&[20_000; 4])).await;
        assert_eq!(large, vec![Ok(vec![20_000; 20_000]); 4]);
        let (first, second) = (request(&[1; 50]), request(&[2; 50]));
        let (first, second) = tokio::join!(streamed(&session, &first), streamed(&session, &second));
        assert_eq!((first, second), (vec![Ok(vec![1; 1]); 50], vec![Ok(vec![2; 2]); 50]));
        let error = session.infer(&request(&[1, 2])).await.unwrap_err();
        assert!(error.to_string().contains("ask it by infer_stream"), "{error}");
    }
    // One that is dropped half-way leaves nothing.
    let mut responses =
        session.infer_stream(&numbers("several", &[4; 100]).output_leased("OUT", &session)).await.unwrap();
    responses.next().await.unwrap().unwrap();
    drop(responses);
    assert_eq!(session.infer(&numbers("echo", &[9])).await.unwrap().outputs[0].to_vec::<i32>().unwrap(), [9]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_response_of_a_grpc_stream_has_a_lease_of_its_own() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let (_, grpc) = server.clients();
    let mut stream = grpc.stream();
    stream.send(&numbers("several", &[2, 2000, 3]).id("a").output_leased("OUT", &session)).await.unwrap();
    stream.send(&numbers("echo", &[8; 100]).id("b").output_leased("OUT", &session)).await.unwrap();
    stream.send(&numbers("echo", &[9]).id("c")).await.unwrap();
    stream.finish();
    let mut kept = Vec::new();
    while let Some(reply) = stream.next().await.unwrap() {
        kept.push((reply.id, reply.outcome.unwrap().outputs));
    }
    drop(stream);
    for _ in 0..3 {
        grpc.infer(&numbers("echo", &[1; 500]).output_leased("OUT", &session)).await.unwrap();
    }
    let mut found: Vec<_> = kept
        .iter()
        .filter_map(|(id, outputs)| Some((id.as_str(), outputs.first()?.to_vec::<i32>().unwrap())))
        .collect();
    found.sort();
    let expect = [("a", vec![2; 2]), ("a", vec![3; 3]), ("a", vec![2000; 2000]), ("b", vec![8; 100]), ("c", vec![9])];
    assert_eq!(found, expect);
    assert!(leases(&session).await >= 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_dropped_returns_what_was_not_seen() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let (_, grpc) = server.clients();
    let mut stream = grpc.stream();
    stream.send(&numbers("several", &[1000; 30]).output_leased("OUT", &session)).await.unwrap();
    let kept = stream.next().await.unwrap().unwrap().outcome.unwrap();
    drop(stream);
    session.in_use().await.unwrap();
    TestServer::until("the leases", || server.pools.counts().leases == server.pools.counts().idle + 1);
    assert_eq!(kept.outputs[0].to_vec::<i32>().unwrap(), [1000; 1000]);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_many_tasks_do_not_mix_their_leases() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let (http, grpc) = server.clients();
    let request = |number: i32, http: http::Client, grpc: grpc::Client, session: Session| async move {
        let request = numbers("echo", &vec![number; 1000]).output_leased("OUT", &session);
        for _ in 0..30 {
            for response in [http.infer(&request).await, grpc.infer(&request).await, session.infer(&request).await] {
                assert_eq!(response.unwrap().outputs[0].to_vec::<i32>().unwrap(), vec![number; 1000]);
            }
        }
    };
    let tasks = (0..8).map(|number| tokio::spawn(request(number, http.clone(), grpc.clone(), session.clone())));
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_given_up_at_any_moment_take_no_memory_that_is_in_use() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let (http, grpc) = server.clients();
    let task = |number: i32, http: http::Client, grpc: grpc::Client, session: Session| async move {
        let mut kept = Vec::new();
        for round in 0..150 {
            let value = number * 1000 + round;
            let request = numbers("echo", &vec![value; 700]).output_leased("OUT", &session);
            // Polled so many times and no more: given up before, while or after it is answered.
            let polls = (value * 7919 % 23) as usize;
            let answer = async { if round % 2 == 0 { http.infer(&request).await } else { grpc.infer(&request).await } };
            if let Some(response) = polled(answer, polls).await {
                kept.push((value, response.unwrap().outputs.remove(0)));
            }
            if kept.len() > 5 {
                kept.swap_remove(value as usize % 5);
            }
            for (value, output) in &kept {
                assert_eq!(output.to_vec::<i32>().unwrap(), vec![*value; 700]);
            }
        }
        kept.len()
    };
    let tasks = (0..6).map(|number| tokio::spawn(task(number, http.clone(), grpc.clone(), session.clone())));
    let mut kept = 0;
    for task in tasks.collect::<Vec<_>>() {
        kept += task.await.unwrap();
    }
    assert!(kept > 0, "some were answered");
    session.in_use().await.unwrap();
    TestServer::until("the leases", || server.pools.counts().leases - server.pools.counts().idle <= 8);
}

/// What the future gives, if it is done after so many polls; otherwise it is dropped.
async fn polled<T>(future: impl Future<Output = T>, polls: usize) -> Option<T> {
    let (mut future, mut left) = (std::pin::pin!(future), polls);
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}
