//! Is the session socket there as long as the server is?

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nerite_client::{Error, Session, SessionOptions};
use nerite_session::{Listener, Location, Opened, Options, serve, serve_at};

use crate::test_server::TestServer;

async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !condition() {
        assert!(Instant::now() < deadline, "not within a minute: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn socket_metrics(server: &TestServer) -> (bool, u64) {
    let found = server.api.metrics_report().session_socket.unwrap();
    (found.is_up, found.reopened)
}

async fn is_served(path: &Path) -> bool {
    match Session::connect(path).await {
        Ok(session) => session.borrow(64).await.is_ok(),
        Err(_) => false,
    }
}

#[tokio::test]
async fn a_socket_that_is_removed_or_replaced_is_made_anew() {
    let server = TestServer::new();
    let path = &server.socket;
    let before = Session::connect(path).await.unwrap();
    assert_eq!(socket_metrics(&server), (true, 0));
    fs::remove_file(path).unwrap();
    until("anew after a removal", || socket_metrics(&server) == (true, 1)).await;
    assert!(is_served(path).await);
    assert_eq!(fs::symlink_metadata(path).unwrap().mode() & 0o7777, 0o600);
    fs::rename(path, path.with_extension("moved")).unwrap();
    until("anew after a move", || socket_metrics(&server) == (true, 2)).await;
    assert!(is_served(path).await);
    // What nobody listens at is replaced.
    let stale = path.with_extension("stale");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    fs::rename(&stale, path).unwrap();
    until("anew after a replacement", || socket_metrics(&server) == (true, 3)).await;
    assert!(is_served(path).await);
    before.borrow(64).await.expect("open sessions go on");
}

#[tokio::test]
async fn a_place_that_is_taken_is_reported_and_had_again_when_it_is_free() {
    let server = TestServer::new();
    let path = &server.socket;
    let kept = path.with_extension("kept");
    fs::write(&kept, "a letter").unwrap();
    fs::rename(&kept, path).unwrap();
    until("down", || !socket_metrics(&server).0).await;
    assert_eq!(fs::read(path).unwrap(), b"a letter");
    fs::remove_file(path).unwrap();
    until("up again", || socket_metrics(&server) == (true, 1)).await;
    assert!(is_served(path).await);
    server.handle.stop().await;
    until("down at the end", || !socket_metrics(&server).0 && !path.exists()).await;
}

#[tokio::test]
async fn a_server_takes_the_place_of_one_that_ends() {
    let (first, second) = (TestServer::new(), TestServer::new());
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("s");
    let ends = serve(first.api.clone(), Options::default(), Listener::bind(&path, false).unwrap());
    let own = place.path().join("own");
    let opened = [&path, &own].map(|path| Opened::at(Location::at(path, false)));
    let _waits = serve_at(second.api.clone(), Options::default(), opened.into());
    assert_eq!(socket_metrics(&second), (true, 0), "clients find it at its own place");
    let server_at = async |path| Session::connect(path).await.unwrap().terms().server_id.clone();
    assert_eq!(server_at(&path).await, first.api.server_id());
    assert_eq!(server_at(&own).await, second.api.server_id());
    ends.stop().await;
    until("the second has it", || socket_metrics(&second) == (true, 1)).await;
    assert_eq!(server_at(&path).await, second.api.server_id());
    // Each place is looked after by itself.
    fs::remove_file(&own).unwrap();
    until("its own place anew", || socket_metrics(&second) == (true, 2)).await;
    assert_eq!(server_at(&own).await, second.api.server_id());
}

#[tokio::test]
async fn a_server_without_a_place_of_its_own_is_down_while_another_has_the_only_one() {
    let (first, second) = (TestServer::new(), TestServer::new());
    let location = Location::at(&first.socket, false);
    let _waits = serve_at(second.api.clone(), Options::default(), vec![Opened::at(location)]);
    assert_eq!(socket_metrics(&second), (false, 0));
}

#[tokio::test]
async fn options_say_whose_server_it_may_be() {
    let server = TestServer::new();
    let me = rustix::process::geteuid().as_raw();
    let options = SessionOptions::default().server_uid(me + 1);
    assert!(Session::connect_to(&server.socket, &options).await.is_ok(), "the own user's always");
    let found = nerite_client::session_server(&server.socket, &options).unwrap();
    assert_eq!((found.pid, found.uid), (Some(std::process::id()), me));
    let nowhere = nerite_client::session_server(server.socket.with_extension("none"), &options);
    assert!(matches!(nowhere, Err(Error::Connect { .. })));
}
