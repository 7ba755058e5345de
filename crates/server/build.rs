//! How is the program linked?

fn main() {
    // Functions with the same instructions are one: generic code of several types often is. Other targets have a linker without this option.
    if is("PROFILE", "release") && is("TARGET", "x86_64-unknown-linux-gnu") {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
    // Libraries that the program opens find all forms of C++'s `operator new` and `operator delete`, by which the memory of runs is counted: see the crate
    // cpp-heap.
    for name in ["_Zn[aw]m*", "_Zd[al]Pv*"] {
        println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol={name}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}

fn is(variable: &str, value: &str) -> bool {
    std::env::var(variable).is_ok_and(|found| found == value)
}
