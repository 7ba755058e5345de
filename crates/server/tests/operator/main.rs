//! Do the operator's commands say what is so, and do what they say?
#![allow(clippy::unwrap_used)]

mod doctor;
#[path = "../../../client/tests/ports/free.rs"]
mod ports;
mod run;
mod shm;
#[path = "../session/test_server.rs"]
mod test_server;
