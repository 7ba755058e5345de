//! Which uses make a cycle, and which do not?

use super::super::tree::Tree;

#[track_caller]
fn check(files: &[(&str, &str)], expect: &[&str]) {
    let files: Vec<(String, &str)> =
        files.iter().map(|(file, text)| (format!("crates/x/src/{file}.rs"), *text)).collect();
    let tree = Tree::of(files.iter().map(|(path, text)| (path.as_str(), *text)));
    let found: Vec<String> = super::check(&tree)
        .iter()
        .map(|finding| finding.text.replace("modules use each other in a cycle: ", "").replace("crates/x/src/", ""))
        .collect();
    assert_eq!(found, expect);
}

const CYCLE: &str = "a.rs:1 uses b.rs, b.rs:1 uses a.rs";

#[test]
fn two_modules_that_import_each_other_are_a_cycle() {
    check(&[("a", "use crate::b::B;"), ("b", "use crate::a::A;")], &[CYCLE]);
    check(&[("a", "use super::b::{self, B};"), ("b", "use super::a::*;")], &[CYCLE]);
    check(&[("a", "use crate::b::B;"), ("b", "use crate::c::C;"), ("c", "")], &[]);
}

#[test]
fn an_inline_path_is_a_use_and_an_imported_module_becomes_one_where_it_is_named() {
    check(&[("a", "fn f(_: &crate::b::B) {}"), ("b", "type T = super::a::A;")], &[CYCLE]);
    check(&[("a", "use crate::b; fn f() { b::f() }"), ("b", "use crate::a::A;")], &[CYCLE]);
    check(&[("a", "use crate::b as c; fn f() { c::f() }"), ("b", "use crate::a::A;")], &[CYCLE]);
    check(&[("a", "/// See [`b`].\nuse crate::b;"), ("b", "use crate::a::A;")], &[]);
}

#[test]
fn a_name_that_is_passed_on_belongs_to_its_module() {
    let root = "mod a; mod b; pub use a::A; pub(crate) use self::b::{B, C as D}; pub use other::Thing;";
    check(&[("lib", root), ("a", "use crate::B;"), ("b", "use crate::A;")], &[CYCLE]);
    check(&[("lib", root), ("a", "use crate::{Thing, D};"), ("b", "use crate::Thing;")], &[]);
    check(&[("a", "pub use crate::b::B;"), ("b", "use crate::a::A;")], &[]);
    check(&[("a", "pub(in crate::x) use crate::b::B;"), ("b", "use crate::a::A;")], &[]);
}

#[test]
fn a_module_and_its_children_may_use_each_other() {
    check(&[("lib", "mod a; use a::A;"), ("a", "mod c; use c::C;"), ("a/c", "use super::A; use crate::Root;")], &[]);
    check(&[("a", "use self::c::C;"), ("a/c", "use super::d::D;"), ("a/d", "use super::A;")], &[]);
}

#[test]
fn a_cycle_through_a_child_counts() {
    let children = ["a/c.rs:1 uses a/d.rs, a/d.rs:1 uses a/c.rs"];
    check(&[("a", ""), ("a/c", "use super::d::D;"), ("a/d", "use super::c::C;")], &children);
    let outside = ["a.rs:1 uses a/c.rs, a/c.rs:1 uses b.rs, b.rs:1 uses a.rs"];
    check(&[("a", "mod c; fn f() { c::f() }"), ("a/c", "use crate::b::B;"), ("b", "use crate::a::A;")], &outside);
    let up = ["a.rs:1 uses b.rs, b.rs:1 uses a/c.rs, a/c.rs:1 uses a.rs"];
    check(&[("a", "use crate::b::B;"), ("a/c", "use super::A;"), ("b", "use crate::a::c::C;")], &up);
    check(&[("a", "mod c; pub use c::C;"), ("a/c", "use crate::b::B;"), ("b", "use crate::a::A;")], &[]);
}

#[test]
fn tests_may_use_all() {
    let b = ("b", "use crate::a::A;");
    check(&[("a", "#[cfg(test)]\nmod tests { use crate::b::B; }"), b], &[]);
    check(&[("a", "#[cfg(all(test, not(miri)))]\n#[allow(x)] fn f<A, B>(_: [u8; 2]) { crate::b::f() }"), b], &[]);
    check(&[("a", "#[cfg(test)] use crate::b::{B, C};\nstruct S { #[cfg(test)] b: crate::b::B, c: u8 }"), b], &[]);
    check(&[("a", "#[cfg(test)]\nmod tests;\nstruct A;"), ("a/tests", "use crate::b::B;"), b], &[]);
    check(&[("a", "#[cfg(not(test))] use crate::b::B;"), b], &[CYCLE]);
    check(&[("a", "struct S { #[cfg(test)] c: u8, b: crate::b::B }"), b], &[CYCLE]);
}

#[test]
fn a_module_without_a_file_is_part_of_the_file_around_it() {
    let b = ("b", "use crate::a::A;");
    check(&[("a", "mod inner { use super::super::b::B; }"), b], &[CYCLE]);
    check(&[("a", "mod b { pub struct B; }\nmod inner { use super::b::B; }"), b], &[]);
    check(&[("a", "mod inner { } use super::b::B;"), b], &[CYCLE]);
}
