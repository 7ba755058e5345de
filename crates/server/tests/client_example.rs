//! Does the example of the Rust client's reference run?
#![allow(clippy::unwrap_used)]

#[path = "../../client/tests/ports/free.rs"]
mod ports;
#[path = "../../client/examples/sum.rs"]
#[allow(dead_code)]
mod sum;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nerite_client::blocking::http::Client;

/// Ended with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "it waits for another process")]
fn the_example_gets_sums_through_a_region() {
    let [http, grpc, metrics] = ports::free_ports().map(|port| port.to_string());
    let server = Command::new(env!("CARGO_BIN_EXE_nerite"))
        .args([
            "serve",
            "--session-socket",
            "off",
            "--http-port",
            &http,
            "--grpc-port",
            &grpc,
            "--metrics-port",
            &metrics,
        ])
        .arg("--model-repository")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/models"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let _server = Server(server);
    let address = format!("http://127.0.0.1:{http}");
    let client = Client::new(&address).unwrap();
    for _ in 0..6000 {
        if matches!(client.is_ready(), Ok(true)) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(sum::sums(&address).unwrap(), [3; 16]);
}
