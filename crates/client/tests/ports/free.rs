//! Which ports are free until a server of a test binds them?

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// The range lies below the ephemeral ports, which the system gives to connections of other tests.
const FIRST: u32 = 10_000;
const COUNT: u32 = 22_000;

/// Returns `N` free ports. This process returns a port again only after all others of the range, and each process begins at another port.
pub fn free_ports<const N: usize>() -> [u16; N] {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    [(); N].map(|()| {
        loop {
            let turn = GIVEN.fetch_add(1, Ordering::Relaxed).wrapping_add(std::process::id().wrapping_mul(97));
            let port = u16::try_from(FIRST + turn % COUNT).unwrap();
            if TcpListener::bind(("0.0.0.0", port)).is_ok() {
                return port;
            }
        }
    })
}
