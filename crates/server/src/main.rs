//! Where does the program begin?

#![forbid(unsafe_code)]

use std::process::ExitCode;

// It replaces C++'s `operator new` for the libraries that the program opens.
use nerite_cpp_heap as _;

/// A request that wants more memory than there is must not end the server.
#[global_allocator]
static HEAP: nerite_memory::Heap = nerite_memory::Heap;

fn main() -> ExitCode {
    // Not in the help, because only servers start it. Nothing may run before it, and its arguments need not be UTF-8.
    if std::env::args_os().nth(1).is_some_and(|word| word == nerite_sandbox::COMMAND) {
        return nerite_sandbox::main(std::env::args_os().skip(2));
    }
    nerite_server::main()
}
