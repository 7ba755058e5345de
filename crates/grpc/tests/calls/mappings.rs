//! Which thread maps and unmaps memory for a client?

use std::thread;

use crate::test_server::TestServer;

const LITTLE_BYTES: u64 = 1 << 20;
const MUCH_BYTES: u64 = 1 << 30;

#[tokio::test]
async fn a_client_with_much_mapped_memory_keeps_no_thread_of_others() {
    let server = TestServer::new();
    let worked_by = |mapped_bytes| server.api.change_mappings(mapped_bytes, || Ok(thread::current().id()));
    assert_eq!(worked_by(LITTLE_BYTES).await, Ok(thread::current().id()));
    assert_ne!(worked_by(MUCH_BYTES).await, Ok(thread::current().id()));
}
