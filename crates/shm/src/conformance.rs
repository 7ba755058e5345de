//! Does every kind of shared memory behave the same once it is registered?
//!
//! One suite, run over POSIX objects and over a fake in heap memory.
#![allow(clippy::unwrap_used)]

mod heap;
mod hosts;
mod lost;

use std::sync::Arc;

use nerite_memory::{Buffer, Extent, Reason};
use proptest::prelude::*;

use self::hosts::{HeapHost, Host, PosixHost};
use self::lost::{
    a_lost_region_can_be_unregistered_like_any_other, a_lost_region_refuses_requests_until_it_is_registered_again,
    only_users_of_a_lost_region_get_an_error,
};
use crate::{ErrorKind, Options, Origin, Record, Region, ShmError};

const PAGE: usize = 4096;

macro_rules! suite {
    ($($name:ident),* $(,)?) => {
        mod heap_backed { $(#[test] fn $name() { super::$name::<super::HeapHost>(); })* }
        mod posix { $(#[test] fn $name() { super::$name::<super::PosixHost>(); })* }
    };
}

suite! {
    a_request_reads_what_the_client_wrote,
    the_next_request_reads_what_the_last_one_wrote,
    an_unused_region_is_unmapped_at_once,
    a_region_in_use_is_unmapped_after_its_last_use,
    requests_may_use_an_unregistered_region_while_it_is_in_use,
    a_new_registration_replaces_an_unregistered_region,
    a_registered_name_is_taken_and_its_region_is_kept,
    one_object_may_be_many_regions,
    status_keeps_no_region_mapped,
    status_is_sorted_by_name,
    all_regions_are_unregistered_and_those_in_use_unmapped_later,
    only_users_of_a_lost_region_get_an_error,
    a_lost_region_refuses_requests_until_it_is_registered_again,
    a_lost_region_can_be_unregistered_like_any_other,
    registrations_stop_at_the_limits,
    a_tensor_must_be_within_its_region,
}

fn new_host<H: Host>() -> H {
    H::new(Options::default())
}

fn read(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.copy_to(&mut bytes, Reason::Model);
    bytes
}

#[track_caller]
fn check_gone<H: Host>(host: &H, name: &str) {
    assert!(matches!(host.registry().system_status(Some(name)), Err(ShmError::StatusUnknown { .. })));
    assert!(matches!(host.registry().locate(name, 0, 1), Err(ShmError::RegionUnknown { .. })));
}

#[track_caller]
fn check_all_gone<H: Host>(host: &H) {
    let counts = host.registry().counts();
    assert_eq!((counts.registered, counts.mapped, counts.mapped_bytes), (0, 0, 0));
    assert_eq!(host.registry().system_status(None), Ok(vec![]));
    assert!(matches!(host.mappings(), None | Some(0)));
}

fn a_request_reads_what_the_client_wrote<H: Host>() {
    let mut host = new_host::<H>();
    let key = host.make(3 * PAGE);
    host.registry().register_system("a", &key, PAGE as u64, PAGE as u64 + 8).unwrap();
    host.client_writes(&key, PAGE + 4, b"first");
    host.client_writes(&key, 2 * PAGE + 4, b"last");
    let first = host.registry().locate("a", 4, 5).unwrap().into_buffer();
    let last = host.registry().locate("a", PAGE as u64 + 4, 4).unwrap().into_buffer();
    assert_eq!((read(&first), read(&last)), (b"first".to_vec(), b"last".to_vec()));
    assert!(first.private_bytes().is_none(), "a client may write these bytes at any moment");
    host.client_writes(&key, PAGE + 4, b"later");
    assert_eq!(read(&first), b"later");
}

fn the_next_request_reads_what_the_last_one_wrote<H: Host>() {
    let mut host = new_host::<H>();
    let key = host.make(PAGE);
    host.registry().register_system("a", &key, 0, PAGE as u64).unwrap();
    let mut slot = host.registry().locate("a", 8, 4).unwrap().into_slot();
    assert!(slot.write(0, b"12345", Reason::Model).is_err());
    slot.write(0, b"1234", Reason::Model).unwrap();
    host.registry().unregister_system("a").unwrap();
    assert_eq!(read(&host.registry().locate("a", 8, 4).unwrap().into_buffer()), b"1234");
    let buffer = slot.filled().into_buffer();
    assert_eq!(read(&buffer), b"1234");
    drop(buffer);
    check_all_gone(&host);
}

fn an_unused_region_is_unmapped_at_once<H: Host>() {
    let mut host = new_host::<H>();
    let key = host.make(PAGE);
    host.registry().register_system("a", &key, 0, 64).unwrap();
    assert_eq!(host.registry().counts().mapped_bytes, 64);
    host.registry().unregister_system("a").unwrap();
    check_gone(&host, "a");
    check_all_gone(&host);
    host.registry().unregister_system("a").unwrap();
    assert_eq!(host.registry().names.fullest(), 0);
}

fn a_region_in_use_is_unmapped_after_its_last_use<H: Host>() {
    let mut host = new_host::<H>();
    let key = host.make(PAGE);
    host.registry().register_system("a", &key, 0, 64).unwrap();
    let input = host.registry().locate("a", 0, 32).unwrap().into_buffer();
    let output = host.registry().locate("a", 32, 32).unwrap().into_slot();
    let part = input.slice(Extent::new(0, 4, 32).unwrap());
    host.registry().unregister_system("a").unwrap();
    for user in [Box::new(input) as Box<dyn std::any::Any>, Box::new(output), Box::new(part)] {
        assert_eq!(host.registry().system_status(Some("a")).unwrap().len(), 1);
        assert_eq!((host.registry().counts().registered, host.registry().counts().mapped), (0, 1));
        drop(user);
    }
    check_gone(&host, "a");
    check_all_gone(&host);
}

fn requests_may_use_an_unregistered_region_while_it_is_in_use<H: Host>() {
    let mut host = new_host::<H>();
    let key = host.make(PAGE);
    host.registry().register_system("a", &key, 0, 64).unwrap();
    let mut user = host.registry().locate("a", 0, 8).unwrap();
    host.registry().unregister_all_system().unwrap();
    for _ in 0..3 {
        user = host.registry().locate("a", 8, 8).unwrap();
        host.registry().unregister_system("a").unwrap();
    }
    assert_eq!(host.registry().system_status(None).unwrap().len(), 1);
    drop(user);
    check_all_gone(&host);
}

fn a_new_registration_replaces_an_unregistered_region<H: Host>() {
    let mut host = new_host::<H>();
    let (old_key, new_key) = (host.make(PAGE), host.make(PAGE));
    host.client_writes(&old_key, 0, b"old");
    host.client_writes(&new_key, 0, b"new");
    host.registry().register_system("a", &old_key, 0, 64).unwrap();
    let old = host.registry().locate("a", 0, 3).unwrap().into_buffer();
    host.registry().unregister_system("a").unwrap();
    host.registry().register_system("a", &new_key, 0, 128).unwrap();
    assert_eq!(read(&old), b"old");
    assert_eq!(read(&host.registry().locate("a", 0, 3).unwrap().into_buffer()), b"new");
    let status = host.registry().system_status(Some("a")).unwrap();
    assert_eq!((&*status[0].key, status[0].byte_size), (&*new_key, 128));
    assert_eq!((host.registry().counts().registered, host.registry().counts().mapped), (1, 2));
    drop(old);
    // Dropping the old region must not remove the new one.
    assert_eq!(read(&host.registry().locate("a", 0, 3).unwrap().into_buffer()), b"new");
    assert_eq!((host.registry().counts().registered, host.registry().counts().mapped), (1, 1));
    host.registry().unregister_system("a").unwrap();
    check_all_gone(&host);
}

fn a_registered_name_is_taken_and_its_region_is_kept<H: Host>() {
    let mut host = new_host::<H>();
    let key = host.make(PAGE);
    host.registry().register_system("a", &key, 0, 64).unwrap();
    let refused = host.registry().register_system("a", &key, 0, 128).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Taken);
    assert_eq!(
        refused.to_string(),
        format!(
            "shared memory region 'a' already in manager: 64 bytes at offset 0 of object '{key}'; unregister it first"
        )
    );
    assert_eq!(host.registry().system_status(Some("a")).unwrap()[0].byte_size, 64);
    assert_eq!((host.registry().counts().mapped, host.registry().counts().refused), (1, 1));
}

fn one_object_may_be_many_regions<H: Host>() {
    let mut host = new_host::<H>();
    let key = host.make(2 * PAGE);
    host.client_writes(&key, PAGE, b"same");
    for (name, offset, byte_size) in [("a", 0, 2 * PAGE), ("b", PAGE, PAGE), ("c", PAGE, 4), ("d", 0, 2 * PAGE)] {
        host.registry().register_system(name, &key, offset as u64, byte_size as u64).unwrap();
        let at = (PAGE - offset) as u64;
        assert_eq!(read(&host.registry().locate(name, at, 4).unwrap().into_buffer()), b"same", "{name}");
    }
    host.registry().unregister_system("a").unwrap();
    assert_eq!(read(&host.registry().locate("b", 0, 4).unwrap().into_buffer()), b"same");
    assert_eq!(host.registry().counts().mapped, 3);
}

fn status_keeps_no_region_mapped<H: Host>() {
    let mut host = new_host::<H>();
    let key = host.make(PAGE);
    host.registry().register_system("a", &key, 0, 64).unwrap();
    let seen = host.registry().system_status(None).unwrap();
    host.registry().unregister_system("a").unwrap();
    check_all_gone(&host);
    assert_eq!(&*seen[0].name, "a");
}

fn status_is_sorted_by_name<H: Host>() {
    let mut host = new_host::<H>();
    let key = host.make(PAGE);
    for name in ["b", "é", "a", "B", "a b", "10", "9"] {
        host.registry().register_system(name, &key, 0, 64).unwrap();
    }
    let status = host.registry().system_status(None).unwrap();
    let names: Vec<_> = status.iter().map(|region| &*region.name).collect();
    assert_eq!(names, ["10", "9", "B", "a", "a b", "b", "é"]);
}

fn all_regions_are_unregistered_and_those_in_use_unmapped_later<H: Host>() {
    let mut host = new_host::<H>();
    let key = host.make(PAGE);
    for name in ["a", "b", "c"] {
        host.registry().register_system(name, &key, 0, 64).unwrap();
    }
    let user = host.registry().locate("b", 0, 0).unwrap().into_buffer();
    host.registry().unregister_all_cuda().unwrap();
    assert_eq!(host.registry().counts().registered, 3);
    host.registry().unregister_all_system().unwrap();
    let status = host.registry().system_status(None).unwrap();
    assert_eq!(status.iter().map(|region| &*region.name).collect::<Vec<_>>(), ["b"]);
    drop(user);
    check_all_gone(&host);
}

fn registrations_stop_at_the_limits<H: Host>() {
    let options = Options { regions_max: 2, mapped_bytes_max: 100, ..Options::default() };
    let mut host = H::new(options);
    let key = host.make(PAGE);
    let text = |name: &str, held: &str, requested: u64| {
        format!(
            "failed to register shared memory region '{name}': unable to process address spaceCannot allocate memory ({held} \
             are mapped, at most 2 of 100 bytes may be, asked for {requested} bytes more; unregister some, or register less of \
             the object)"
        )
    };
    host.registry().register_system("a", &key, 0, 60).unwrap();
    let refused = host.registry().register_system("b", &key, 0, 41).unwrap_err();
    assert_eq!(refused.to_string(), text("b", "1 regions of 60 bytes", 41));
    host.registry().register_system("b", &key, 0, 40).unwrap();
    let user = host.registry().locate("b", 0, 1).unwrap();
    host.registry().unregister_system("b").unwrap();
    // An unregistered region that is in use still counts, because it is still mapped.
    let refused = host.registry().register_system("c", &key, 0, 1).unwrap_err();
    assert_eq!(refused.to_string(), text("c", "2 regions of 100 bytes", 1));
    drop(user);
    host.registry().register_system("c", &key, 0, 1).unwrap();
}

fn a_tensor_must_be_within_its_region<H: Host>() {
    let mut host = new_host::<H>();
    let key = host.make(PAGE);
    host.registry().register_system("a", &key, 0, 64).unwrap();
    let check = |offset: u64, byte_size: u64, expect: Option<&str>| {
        let located = host.registry().locate("a", offset, byte_size);
        assert_eq!(located.err().map(|e| e.to_string()).as_deref(), expect, "{byte_size} at {offset}");
    };
    check(0, 64, None);
    check(0, 0, None);
    check(63, 1, None);
    check(63, 0, None);
    check(64, 0, Some("Invalid offset for shared memory region: 'a': it has 64 bytes, offset 64 is past the last"));
    check(
        -1i64 as u64,
        8,
        Some(
            "Invalid offset for shared memory region: 'a': it has 64 bytes, offset 18446744073709551615 is past the last",
        ),
    );
    check(
        1,
        -1i64 as u64,
        Some(
            "Integer overflow detected: byte_size (18446744073709551615) + offset (1) exceeds maximum value \
             (18446744073709551615) for region 'a'",
        ),
    );
    check(
        1,
        64,
        Some("Invalid offset + byte size for shared memory region: 'a': it has 64 bytes, asked for 64 at offset 1"),
    );
    check(
        0,
        u64::MAX,
        Some(
            "Invalid offset + byte size for shared memory region: 'a': it has 64 bytes, asked for 18446744073709551615 at \
             offset 0",
        ),
    );
}

fn near(edge: u64) -> impl Strategy<Value = u64> {
    prop_oneof![0..=edge + 2, edge.saturating_sub(2)..=edge + 2, (0u64..=200).prop_map(|n| u64::MAX - n), any::<u64>()]
}

proptest! {
    #[test]
    fn every_extent_agrees_with_arithmetic_that_cannot_overflow(
        region in 1u64..=100, offset in near(100), byte_size in near(100),
    ) {
        let mut host = new_host::<HeapHost>();
        let key = host.make(100);
        host.registry().register_system("a", &key, 0, region).unwrap();
        let (end, limit) = (u128::from(offset) + u128::from(byte_size), u128::from(region));
        let located = host.registry().locate("a", offset, byte_size);
        match located {
            Ok(located) => {
                prop_assert!(offset < region && end <= limit);
                prop_assert_eq!((located.extent().offset(), located.extent().len()), (offset as usize, byte_size as usize));
                let buffer = located.into_buffer();
                let at = buffer.as_ptr().addr() - host.bases[&key].as_ptr().addr();
                prop_assert_eq!((at, buffer.len()), (offset as usize, byte_size as usize));
            }
            Err(ShmError::OffsetBeyond { .. }) => prop_assert!(offset >= region),
            Err(ShmError::Overflow { .. }) => prop_assert!(offset < region && end > u128::from(u64::MAX)),
            Err(ShmError::EndBeyond { .. }) => {
                prop_assert!(offset < region && end > limit && end <= u128::from(u64::MAX));
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}

#[test]
fn lookups_and_changes_are_small_with_ten_thousand_regions() {
    let mut host = new_host::<HeapHost>();
    let key = host.make(64);
    for round in 0..2 {
        for n in 0..10_000 {
            host.registry().register_system(&format!("{round}/{n}"), &key, 0, 64).unwrap();
        }
        assert_eq!(host.registry().counts().registered, 10_000);
        // The average is 39. 100 is ten standard deviations more.
        assert!(host.registry().names.fullest() < 100, "{}", host.registry().names.fullest());
        host.registry().unregister_all_system().unwrap();
        assert_eq!(host.registry().names.fullest(), 0);
    }
    check_all_gone(&host);
}

#[test]
fn both_kinds_share_names_and_are_distinguished() {
    let host = new_host::<HeapHost>();
    let registry = host.registry();
    let window = crate::window::Window::new(0, 64, 64, 1).unwrap();
    host.heap.make("gpu", 64);
    host.heap.make("/x", 64);
    let mapping = crate::source::Source::open(&host.heap, "gpu").unwrap().map(window).unwrap();
    let record = Record { name: "g".into(), byte_size: 64, origin: Origin::Cuda { device_id: 3 } };
    let permit = registry.mapped_counts.admit(64).unwrap();
    registry.insert(Region::new(Arc::new(record), mapping, Box::new(()), permit)).unwrap();
    registry.register_system("s", "/x", 0, 64).unwrap();

    for status in [registry.system_status(Some("g")).map(drop), registry.cuda_status(Some("s")).map(drop)] {
        assert_eq!(status.unwrap_err().kind(), ErrorKind::Missing);
    }
    let text = |refused: Result<(), ShmError>| refused.unwrap_err().to_string();
    assert_eq!(
        text(registry.register_system("g", "/x", 0, 64)),
        "shared memory region 'g' already in manager: 64 bytes on device 3; unregister it first"
    );
    assert_eq!(
        text(registry.system_status(Some("g")).map(drop)),
        "The region named 'g' is registered as CUDA shared memory, not system shared memory"
    );
    assert_eq!(
        text(registry.cuda_status(Some("s")).map(drop)),
        "The region named 's' is registered as system shared memory, not CUDA shared memory"
    );
    assert_eq!(registry.cuda_status(None).unwrap()[0].device_id, 3);
    assert_eq!(registry.system_status(None).unwrap().len(), 1);
    registry.unregister_system("g").unwrap();
    registry.unregister_cuda("s").unwrap();
    assert_eq!(registry.counts().registered, 2);
    registry.unregister_all_cuda().unwrap();
    assert_eq!(registry.cuda_status(None).unwrap(), []);
    assert_eq!(registry.counts().registered, 1);
}
