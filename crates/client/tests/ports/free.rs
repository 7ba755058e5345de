//! Which ports does nobody have, and is nobody given before a server has taken them?

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// These lie below the ports that the system gives to whoever connects to somebody, as other tests do all the time.
const FIRST: u32 = 10_000;
const COUNT: u32 = 22_000;

/// So many ports; none is given a second time by this process, and each process begins elsewhere.
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
