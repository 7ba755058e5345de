//! Do calls over a socket go as clients expect?
#![allow(clippy::unwrap_used)]

mod compression;
mod ending;
mod framing;
mod infer;
mod peer;
mod runtimes;
mod slow;
mod stream;
mod test_server;
mod tls;
