//! How does a client get its answer if the body of its request was not read?
//!
//! ```text
//!   body ends soon:   read it ── answer                          the connection stays
//!   otherwise:        read for a while ── answer ── read on      the connection closes
//! ```
//!
//! If a connection is closed while bytes lie unread in its socket, the kernel resets it. A client that is still sending then loses the answer, and sees a
//! broken pipe in its place. So the body is read and dropped, within bounds on bytes and time.

use std::future::poll_fn;
use std::pin::Pin;

use bytes::Bytes;
use http::header::{CONNECTION, EXPECT};
use http::{HeaderMap, HeaderValue, Response};
use http_body::Body;
use nerite_watchdog::{Flow, FrontEnd, fair};
use tokio::time::timeout;

use crate::incoming::Incoming;
use crate::limits::{DISCARD_MAX, LEAVE_MAX, UNREAD_BODY_BYTES_MAX};

/// Returns `response` once the client can read it. `headers` and `body` are those of its request. The thread time is charged to `flow`.
pub async fn answer_unread<B>(
    flow: &Flow,
    headers: &HeaderMap,
    body: Incoming,
    mut response: Response<B>,
) -> Response<B> {
    if body.is_end_stream() {
        return response;
    }
    let mut unread = Unread { body, bytes_left: UNREAD_BODY_BYTES_MAX };
    // A client that sent `Expect: 100-continue` learns from the answer that it must not send the body. If the body were read, hyper would ask for it.
    let asks_first = headers.contains_key(EXPECT);
    if !asks_first && timeout(DISCARD_MAX, unread.drop_rest()).await == Ok(true) {
        return response;
    }
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    if !asks_first {
        // Many clients read the answer only after they have sent the whole body. The connection stays open until this task drops the body.
        let reading = async move {
            let _ = timeout(LEAVE_MAX, unread.drop_rest()).await;
        };
        drop(tokio::spawn(fair(FrontEnd::Http, flow, reading)));
    }
    response
}

/// A body whose bytes are dropped as they arrive.
struct Unread {
    body: Incoming,
    bytes_left: u64,
}

impl Unread {
    /// Reads and drops the body. Returns true when it has ended or failed, and false when it is longer than the limit.
    async fn drop_rest(&mut self) -> bool {
        while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await {
            let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
            let Some(left) = self.bytes_left.checked_sub(bytes) else { return false };
            self.bytes_left = left;
        }
        true
    }
}
