//! What does the loader know of the library?

fn main() {
    // The name that programs and backends which are linked to Triton's library ask for.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtritonserver.so");
    // It stays once it is loaded: its threads outlive the handle of whoever closes it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
