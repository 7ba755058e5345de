//! Does a program without a runtime get the same answers?
//!
//! The server is the one of `NERITE_HTTP` and `NERITE_GRPC` (see `server.rs`). Without these variables, tests that need a server do nothing.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::time::Duration;

use nerite_client::{ClientOptions, DataType, Error, Region, Request, Session, Tensor, blocking};

fn named(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn request() -> Request {
    let numbers = |name, number: i32| Tensor::from_slice(name, &[1, 16], &[number; 16]).unwrap();
    Request::new("simple").id("7").input(numbers("INPUT0", 3)).input(numbers("INPUT1", 1))
}

#[test]
fn both_protocols_answer() {
    let (Some(http), Some(grpc)) = (named("NERITE_HTTP"), named("NERITE_GRPC")) else { return };
    let options = ClientOptions::default().request_max(Duration::from_mins(1)).connect_max(Duration::from_mins(1));
    let http = blocking::http::Client::with_options(&http, &options).unwrap();
    let grpc = blocking::grpc::Client::with_options(&grpc, &options).unwrap();
    assert!(http.is_ready().unwrap() && grpc.is_model_ready("simple", None).unwrap());
    assert_eq!(http.server_metadata().unwrap(), grpc.server_metadata().unwrap());
    for _ in 0..3 {
        for response in [http.infer(&request()), grpc.infer(&request())] {
            assert_eq!(response.unwrap().output("OUTPUT0").unwrap().as_slice::<i32>().unwrap(), [4; 16]);
        }
    }
    let mut stream = grpc.stream().unwrap();
    stream.send(&request()).unwrap();
    stream.finish();
    let replies: Vec<_> = stream.map(|reply| reply.unwrap().id).collect();
    assert_eq!(replies, ["7"]);
    // Threads share a client.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert!(http.is_live().unwrap() && grpc.is_live().unwrap()));
        }
    });
}

#[test]
fn a_region_is_unregistered_where_no_runtime_is() {
    let Some(http) = named("NERITE_HTTP") else { return };
    let client = blocking::http::Client::new(&http).unwrap();
    let name = format!("nerite_client_blocking_{}", std::process::id());
    let region = Region::create(&format!("/{name}"), 256).unwrap();
    region.write(0, &[2i32; 32]).unwrap();
    let region = blocking::wait(region.register(&client, &name)).unwrap();
    let request = Request::new("simple")
        .input_in_region("INPUT0", DataType::Int32, &[1, 16], &region, 0)
        .and_then(|request| request.input_in_region("INPUT1", DataType::Int32, &[1, 16], &region, 64))
        .unwrap()
        .output_in_region("OUTPUT0", &region, 128, 64);
    client.infer(&request).unwrap();
    assert_eq!(region.view::<i32>(128, 16).unwrap().to_vec(), [4; 16]);
    let is_there = || client.system_regions(None).unwrap().iter().any(|region| region.name == name);
    assert!(is_there());
    drop(region);
    for _ in 0..1000 {
        if !is_there() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{name} is still registered");
}

#[test]
fn within_a_runtime_waiting_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let client = blocking::http::Client::new("unix:/nonexistent").unwrap();
    let result = runtime.block_on(async { client.is_live() });
    assert!(matches!(result, Err(Error::Blocking(_))), "{result:?}");
    assert_eq!(
        result.unwrap_err().to_string(),
        "cannot wait: the thread runs tasks of a tokio runtime; await the call there"
    );
    assert!(matches!(client.is_live(), Err(Error::Connect { .. })));
    let session = blocking::wait(Session::connect("/nonexistent/session.sock"));
    assert!(matches!(session, Err(Error::Connect { .. })), "{session:?}");
}
