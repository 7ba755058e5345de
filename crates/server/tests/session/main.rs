//! Do sessions keep what `docs/session.md` says?
#![expect(clippy::disallowed_methods, reason = "tests wait for their server, and looking again is how")]
#![allow(clippy::unwrap_used)]

mod admission;
mod hostile;
mod inference;
mod names;
mod on_demand;
mod placed;
mod prepared;
mod socket;
mod staged;
mod test_server;
mod tokens;
mod traced;
