//! Do sessions keep what `docs/session.md` says?
#![allow(clippy::unwrap_used)]

mod hostile;
mod inference;
mod names;
mod placed;
mod socket;
mod test_server;
