//! How does a program for Triton's library run this server in its own process?
//!
//! ```text
//!   program ──needs──► libtritonserver.so = this crate: the functions of `cabi`, and the server behind TRITONSERVER_ServerNew
//! ```
//! The functions are exported by `cabi`, which this crate links to. This crate does what `main` does in the program `nerite`. It is for programs in
//! C. Rust programs use the crate `server` directly. This example is neither compiled nor run, because Cargo does that for no library for C; that of
//! `server` has the same calls, and is run:
//!
//! ```no_run
//! use nerite_server::InProcess;
//!
//! let server = InProcess::start(&["--model-repository=models".to_owned()])?;
//! # Ok::<(), nerite_request::Status>(())
//! ```

use std::sync::Arc;

use nerite_cabi::{ServerCalls, serve_in_process};
use nerite_request::Status;
use nerite_server::InProcess;

/// A request that wants more memory than there is must not end the program.
#[global_allocator]
static HEAP: nerite_memory::Heap = nerite_memory::Heap;

/// Called when the library is loaded, before any of its functions can be.
// SAFETY: the loader calls the functions whose addresses are in the section. It passes arguments, which a function without parameters ignores.
// `loaded` does not unwind: it stores an address.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    serve_in_process(start);
}

fn start(flags: &[String]) -> Result<Arc<dyn ServerCalls>, Status> {
    Ok(Arc::new(InProcess::start(flags)?))
}
