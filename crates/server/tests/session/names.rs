//! Whose are leases and regions, and how much may one have?

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use nerite_api::{Category, Protocol, Restriction};
use nerite_client::{Code, DataType, Region, Request, Session};
use nerite_request::{InferInput, InferRequest, Recycled, RegionRef, Source};
use nerite_shm::{LeaseCounts, LeaseLimits};
use nerite_tensor::Shape;

use crate::test_server::TestServer;

#[tokio::test(flavor = "multi_thread")]
async fn a_region_of_one_session_is_nobody_elses() {
    let server = TestServer::new();
    let mine = Session::connect(&server.socket).await.unwrap();
    let other = Session::connect(&server.socket).await.unwrap();
    let key = format!("/nerite-session-names-{}", std::process::id());
    let region = Region::create(&key, 4096).unwrap();
    region.write(0, &[9i32; 4]).unwrap();
    mine.register_system_region("mine", &key, 0, 4096).await.unwrap();

    assert_eq!(mine.system_regions("").await.unwrap().len(), 1);
    assert!(other.system_regions("").await.unwrap().is_empty());
    assert!(server.api.system_status("").unwrap().is_empty(), "HTTP and gRPC see nothing");

    let window = RegionRef { name: "mine".into(), offset: 0, byte_size: 16 };
    let request = Request::new("echo").input_in_window("IN", DataType::Int32, &[4], window);
    assert_eq!(mine.infer(&request).await.unwrap().outputs[0].to_vec::<i32>().unwrap(), [9; 4]);
    assert_eq!(other.infer(&request).await.unwrap_err().code(), Some(Code::NotFound));

    other.unregister_system_region("").await.unwrap();
    server.api.unregister_system("").unwrap();
    mine.infer(&request).await.unwrap();
    other.register_system_region("mine", &key, 0, 4096).await.unwrap();
    mine.unregister_system_region("mine").await.unwrap();
    assert_eq!(mine.infer(&request).await.unwrap_err().code(), Some(Code::NotFound));
    other.infer(&request).await.unwrap();
}

/// So a session with large ones is ended on a thread that serves no connection.
#[tokio::test(flavor = "multi_thread")]
async fn the_memory_that_ends_with_a_session_is_that_of_its_leases_and_its_regions() {
    // A larger object would be unmapped by another thread, a moment later.
    const BYTES: usize = 2 << 20;
    let server = TestServer::new();
    let scope = server.api.open_scope();
    let key = format!("/nerite-session-memory-{}", std::process::id());
    let _region = Region::create(&key, BYTES).unwrap();
    scope.register_system("large", &key, 0, BYTES as u64).unwrap();
    let lease = scope.borrow(1 << 20).unwrap();
    assert_eq!(scope.mapped_bytes(), (BYTES + lease.lease.byte_size()) as u64);
    scope.unregister_system("large").unwrap();
    assert_eq!(scope.mapped_bytes(), lease.lease.byte_size() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sessions_region_shadows_the_shared_one_of_that_name() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let region = |which: i32| {
        let key = format!("/nerite-session-shadow-{which}-{}", std::process::id());
        let region = Region::create(&key, 4096).unwrap();
        region.write(0, &[which; 4]).unwrap();
        (region, key)
    };
    let ((_shared, shared), (_own, own)) = (region(1), region(2));
    server.api.register_system("r", &shared, 0, 4096).unwrap();
    let window = RegionRef { name: "r".into(), offset: 0, byte_size: 16 };
    let request = Request::new("echo").input_in_window("IN", DataType::Int32, &[4], window);
    assert_eq!(session.infer(&request).await.unwrap().outputs[0].to_vec::<i32>().unwrap(), [1; 4]);
    session.register_system_region("r", &own, 0, 4096).await.unwrap();
    assert_eq!(session.infer(&request).await.unwrap().outputs[0].to_vec::<i32>().unwrap(), [2; 4]);
    session.unregister_system_region("").await.unwrap();
    assert_eq!(session.infer(&request).await.unwrap().outputs[0].to_vec::<i32>().unwrap(), [1; 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_protocols_find_a_lease_by_its_name_while_it_is_lent() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let lease = session.borrow(4096).await.unwrap();
    lease.write(0, &[4i32; 4]).unwrap();
    let infer_request = |window: RegionRef| {
        Recycled::from(InferRequest {
            model: "echo".into(),
            inputs: vec![InferInput {
                name: "IN".into(),
                datatype: DataType::Int32,
                shape: Shape::from_slice(&[4]),
                source: Source::Region(window),
            }]
            .into(),
            ..InferRequest::default()
        })
    };
    let response = server.api.infer(infer_request(lease.window(0, 16))).await;
    assert_eq!(response.unwrap().outputs[0].data.numbers::<i32>().unwrap(), [4; 4]);
    assert!(server.api.system_status("").unwrap().is_empty(), "and yet it is no region");
    let window = lease.window(0, 16);
    drop((lease, session));
    tokio::task::block_in_place(|| TestServer::until("the end", || server.pools.counts() == LeaseCounts::default()));
    assert_eq!(server.api.infer(infer_request(window)).await.unwrap_err().code, Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_goes_back_when_all_of_it_is_dropped() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let lease = session.borrow(2 << 20).await.unwrap();
    lease.write(0, &[1u8; 100]).unwrap();
    let (name, view) = (lease.name().to_owned(), lease.view::<u8>(0, 100).unwrap());
    drop(lease);
    assert_eq!(server.pools.counts().idle, 0, "the view holds it");
    assert_eq!(view.to_vec(), [1; 100]);
    drop(view);
    tokio::task::block_in_place(|| TestServer::until("the return", || server.pools.counts().idle == 1));
    let again = session.borrow(2 << 20).await.unwrap();
    assert_eq!((again.name(), again.read_bytes(99, 2).unwrap()), (name.as_str(), vec![1, 0]));
    drop(again);
    tokio::task::block_in_place(|| TestServer::until("the return", || server.pools.counts().idle == 1));
    assert_eq!(server.pools.trim(0), 2 << 20);
    let fresh = session.borrow(2 << 20).await.unwrap();
    assert_eq!((fresh.name() == name, fresh.read_bytes(0, 2).unwrap()), (false, vec![0, 0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_borrow_does_not_wait_for_clients_that_change_regions() {
    const BYTES: u64 = 4 << 20;
    let limits = LeaseLimits { bytes_max: BYTES, session_bytes_max: BYTES };
    let server = TestServer::with(limits, nerite_api::Options::default());
    let session = Session::connect(&server.socket).await.unwrap();
    drop(session.borrow(BYTES as usize).await.unwrap());
    let (begun, (ends, end)) = (Arc::new(AtomicUsize::new(0)), mpsc::channel::<()>());
    let end = Arc::new(Mutex::new(end));
    let change = || {
        let (api, begun, end) = (server.api.clone(), Arc::clone(&begun), Arc::clone(&end));
        tokio::spawn(async move {
            let change = move || {
                begun.fetch_add(1, Ordering::SeqCst);
                let _ = end.lock().unwrap().recv();
                Ok(())
            };
            api.change_mappings(u64::MAX, change).await
        })
    };
    let changes: Vec<_> = (0..4).map(|_| change()).collect();
    TestServer::until("all permits are in use", || begun.load(Ordering::SeqCst) == 2);
    // The same lease again, and then a smaller one that needs its memory.
    drop(session.borrow(BYTES as usize).await.unwrap());
    assert_eq!(server.pools.counts().leases, 1);
    session.borrow(4096).await.unwrap();
    drop(ends);
    for changed in changes {
        assert_eq!(changed.await.unwrap(), Ok(()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_sessions_quota_is_not_anothers() {
    let server = TestServer::with(
        LeaseLimits { bytes_max: 8 << 20, session_bytes_max: 4 << 20 },
        nerite_api::Options::default(),
    );
    let greedy = Session::connect(&server.socket).await.unwrap();
    let modest = Session::connect(&server.socket).await.unwrap();
    let mut held = Vec::new();
    let refused = loop {
        match greedy.borrow(1 << 20).await {
            Ok(lease) => held.push(lease),
            Err(refused) => break refused,
        }
    };
    assert_eq!((held.len(), refused.code()), (4, Some(Code::Unavailable)));
    assert!(refused.to_string().contains("--session-max-bytes"), "{refused}");
    assert_eq!(greedy.borrow(5 << 20).await.unwrap_err().code(), Some(Code::InvalidArg));
    assert_eq!(greedy.borrow(0).await.unwrap_err().code(), Some(Code::InvalidArg));
    let lease = modest.borrow(1 << 20).await.unwrap();
    lease.write(0, &[1i32; 4]).unwrap();
    let request = Request::new("echo").input_in_window("IN", DataType::Int32, &[4], lease.window(0, 16));
    modest.infer(&request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_answers_what_is_in_flight() {
    let server = TestServer::new();
    let session = Session::connect(&server.socket).await.unwrap();
    let held = Request::new("held").input(nerite_client::Tensor::from_slice("IN", &[1], &[6i32]).unwrap());
    let waiting = tokio::spawn({
        let session = session.clone();
        async move { session.infer_leased(&held, &["OUT"]).await }
    });
    tokio::task::block_in_place(|| TestServer::until("the request", || server.held.count() == 1));
    let stopped = tokio::spawn(server.handle.stop());
    tokio::task::block_in_place(|| TestServer::until("the socket's end", || !server.socket.exists()));
    assert!(!stopped.is_finished());
    server.held.answer();
    let response = waiting.await.unwrap().unwrap();
    assert_eq!(response.outputs[0].to_vec::<i32>().unwrap(), [6]);
    stopped.await.unwrap();
    assert!(matches!(session.borrow(1).await, Err(nerite_client::Error::Broken { .. })));
    assert_eq!(response.outputs[0].to_vec::<i32>().unwrap(), [6], "what the client has mapped, it keeps");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_restricted_elsewhere_is_restricted_here() {
    let rule = |protocol, category, header: &str| Restriction {
        protocol,
        category,
        header: header.to_owned(),
        value: "secret".to_owned(),
    };
    let restrictions = vec![
        rule(Protocol::Http, Category::Inference, "infer-key"),
        rule(Protocol::Grpc, Category::SharedMemory, "triton-grpc-protocol-shm-key"),
    ];
    let options = nerite_api::Options { restrictions, ..nerite_api::Options::default() };
    let server = TestServer::with(LeaseLimits::default(), options);
    let request = Request::new("echo").input(nerite_client::Tensor::from_slice("IN", &[1], &[1i32]).unwrap());
    type Headers = &'static [(&'static str, &'static str)];
    let cases: [(Headers, bool, bool); 4] = [
        (&[], false, false),
        (&[("Infer-Key", "secret")], true, false),
        (&[("infer-key", "wrong"), ("triton-grpc-protocol-shm-key", "secret")], false, true),
        (&[("infer-key", "secret"), ("triton-grpc-protocol-shm-key", "secret")], true, true),
    ];
    for (headers, infers, borrows) in cases {
        let session = Session::connect_with(&server.socket, headers).await.unwrap();
        assert_eq!(session.infer(&request).await.is_ok(), infers, "{headers:?}");
        assert_eq!(session.borrow(1).await.is_ok(), borrows, "{headers:?}");
        // Memory that the server chooses for an output is lent as well.
        assert_eq!(session.infer_leased(&request, &["OUT"]).await.is_ok(), infers && borrows, "{headers:?}");
    }
}
