//! Do calls over a socket behave as clients expect?
#![allow(clippy::unwrap_used)]

mod classes;
mod compression;
mod ending;
mod framing;
mod infer;
mod mappings;
mod peer;
mod runtimes;
mod slow;
mod stream;
mod test_server;
mod tls;
