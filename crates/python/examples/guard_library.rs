//! How does a test get the guard library that models' processes load?
//!
//! ```text
//! cargo run -p nerite-python --example guard_library -- PATH
//! ```
#![forbid(unsafe_code)]

#[path = "../src/guard_library.rs"]
mod guard_library;

fn main() -> std::io::Result<()> {
    let path = std::env::args_os().nth(1).ok_or_else(|| std::io::Error::other("the library's path is missing"))?;
    std::fs::write(path, guard_library::LIBRARY)
}
