//! What does the HTTP client do with its connections?
//!
//! The server of these tests answers every request with the same page, and counts its connections.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nerite_client::{Error, Request, Tensor, http};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// A server on a Unix socket that closes each connection after a number of answers.
struct Page {
    path: PathBuf,
    connections: Arc<AtomicUsize>,
}

impl Page {
    fn serve(name: &str, answer: &[u8], answers_per_connection: usize) -> Page {
        let path = std::env::temp_dir().join(format!("nerite-client-{}-{name}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let (counted, answer) = (Arc::clone(&connections), answer.to_vec());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let answer = answer.clone();
                tokio::spawn(async move { talk(stream, &answer, answers_per_connection).await });
            }
        });
        Page { path, connections }
    }

    fn client(&self) -> http::Client {
        http::Client::new(&format!("unix:{}", self.path.display())).unwrap()
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Reads and answers requests, each of the length that its head says.
async fn talk(mut stream: UnixStream, answer: &[u8], answers: usize) {
    let mut have = Vec::new();
    for _ in 0..answers {
        loop {
            let text = String::from_utf8_lossy(&have).into_owned();
            if let Some((head, _)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                let whole = head.len() + 4 + length.map_or(0, |length| length.parse::<usize>().unwrap());
                if have.len() >= whole {
                    have.drain(..whole);
                    break;
                }
            }
            if stream.read_buf(&mut have).await.unwrap_or(0) == 0 {
                return;
            }
        }
        stream.write_all(answer).await.unwrap();
    }
}

#[tokio::test]
async fn a_kept_connection_serves_the_next_request() {
    let page = Page::serve("kept", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", usize::MAX);
    let client = page.client();
    for _ in 0..5 {
        assert_eq!(client.page("/metrics").await.unwrap(), "hi");
    }
    assert_eq!(page.connections(), 1);
}

#[tokio::test]
async fn a_connection_the_server_closed_is_replaced() {
    let page = Page::serve("closed", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", 1);
    let client = page.client();
    for round in 1..=3 {
        assert_eq!(client.page("/metrics").await.unwrap(), "hi");
        // Gives the client time to notice that the connection is closed. Otherwise it may send the next request on it, which fails with `Error::Broken`.
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        assert_eq!(page.connections(), round);
    }
}

#[tokio::test]
async fn a_body_cut_short_is_an_error() {
    let answer = b"HTTP/1.1 200 OK\r\ninference-header-content-length: 2\r\ncontent-length: 10\r\n\r\n{}abc";
    let page = Page::serve("short", answer, 1);
    let tensor = Tensor::from_slice("A", &[1], &[1u8]).unwrap();
    let result = page.client().infer(&Request::new("m").input(tensor)).await;
    assert!(matches!(result, Err(Error::Broken { .. })), "{result:?}");
}

#[tokio::test]
async fn nobody_at_the_address_is_said() {
    let client = http::Client::new("unix:/nonexistent/nerite.sock").unwrap();
    let error = client.is_live().await.expect_err("nobody there");
    assert!(matches!(error, Error::Connect { .. }), "{error}");
}
