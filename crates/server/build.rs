//! Which functions of the program do libraries find that it opens?

fn main() {
    // All forms of C++'s `operator new` and `operator delete`, by which the memory of runs is counted: see the crate cpp-heap.
    for name in ["_Zn[aw]m*", "_Zd[al]Pv*"] {
        println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol={name}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
