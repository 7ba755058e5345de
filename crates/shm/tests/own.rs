//! Is a client's own region created and removed correctly?
#![allow(clippy::unwrap_used)]

use std::path::Path;

use nerite_memory::{Extent, Reason};
use nerite_shm::{OwnError, OwnedRegion};

fn key(part: &str) -> String {
    format!("/nerite-own-{}-{part}", std::process::id())
}

fn exists(key: &str) -> bool {
    Path::new(&format!("/dev/shm{key}")).exists()
}

#[test]
fn an_object_is_unlinked_with_its_owner_and_its_bytes_are_kept_for_readers() {
    let key = key("life");
    let region = OwnedRegion::create(&key, 100).unwrap();
    assert!(exists(&key));
    assert_eq!((region.key(), region.byte_size()), (&*key, 100));
    region.slot(Extent::new(96, 4, 100).unwrap()).write(0, b"tail", Reason::Model).unwrap();
    let whole = region.buffer(Extent::whole(100));
    drop(region);
    assert!(!exists(&key));
    assert_eq!(whole.read_u32(96), Some(u32::from_le_bytes(*b"tail")));
    assert_eq!(whole.read_u32(0), Some(0));
}

#[test]
fn a_second_owner_is_refused_and_the_first_one_keeps_the_object() {
    let key = key("twice");
    let first = OwnedRegion::create(&key, 64).unwrap();
    assert!(matches!(OwnedRegion::create(&key, 64), Err(OwnError::Exists { .. })));
    assert!(exists(&key));
    drop(first);
    assert!(!exists(&key));
}

#[test]
fn opening_an_object_does_not_unlink_it() {
    let key = key("opened");
    let owner = OwnedRegion::create(&key, 64).unwrap();
    owner.slot(Extent::whole(4)).write(0, b"seen", Reason::Model).unwrap();
    let opened = OwnedRegion::open(&key).unwrap();
    assert_eq!(opened.byte_size(), 64);
    assert_eq!(opened.buffer(Extent::whole(4)).read_u32(0), Some(u32::from_le_bytes(*b"seen")));
    drop(opened);
    assert!(exists(&key));
}

#[test]
fn a_key_that_was_unlinked_is_not_unlinked_again() {
    let key = key("again");
    let mut first = OwnedRegion::create(&key, 64).unwrap();
    first.unlink().unwrap();
    let second = OwnedRegion::create(&key, 64).unwrap();
    drop(first);
    assert!(exists(&key));
    drop(second);
}

#[test]
fn a_failed_creation_leaves_no_object() {
    #[track_caller]
    fn check(key: &str, byte_size: usize, part: &str) {
        let text = OwnedRegion::create(key, byte_size).unwrap_err().to_string();
        assert!(text.contains(part), "{text}");
        assert!(key == "/" || !exists(key));
    }
    check(&key("none"), 0, "at least one byte");
    check(&key("huge"), 1 << 50, "No space left on device (/dev/shm is ");
    check(&key("negative"), usize::MAX, "File too large");
    check("/", 64, "the key is empty");
    check("/nerite/own", 64, "no '/' may follow");
    let text = OwnedRegion::open(&key("missing")).unwrap_err().to_string();
    assert!(text.contains("no object of that name"), "{text}");
}

#[test]
#[should_panic(expected = "extent up to 128 of 64")]
fn an_extent_of_a_longer_range_panics() {
    let region = OwnedRegion::create(&key("longer"), 64).unwrap();
    let _ = region.buffer(Extent::whole(128));
}
