//! What can another process of this host do with a region or a lease, and what happens if it reports a loss?
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use nerite_memory::{Buffer, Extent, Reason};
use nerite_shm::{LeaseLimits, Options, OwnedRegion, Pools, Registry};

const PAGE: usize = 4096;

fn key(name: &str) -> String {
    format!("/nerite-test-share-{name}-{}", std::process::id())
}

/// Byte `at` of the object that another process would map.
fn byte(descriptor: OwnedFd, at: u64) -> u8 {
    let mut byte = [0];
    File::from(descriptor).read_exact_at(&mut byte, at).unwrap();
    byte[0]
}

fn opened(buffer: &Buffer) -> std::io::Result<(OwnedFd, u64)> {
    let window = buffer.share().unwrap();
    let (descriptor, file_offset) = window.share.open()?;
    Ok((descriptor, file_offset + window.offset as u64))
}

#[test]
fn a_region_is_opened_at_its_offset_in_the_object() {
    let key = key("where");
    let mine = OwnedRegion::create(&key, 3 * PAGE).unwrap();
    mine.slot(Extent::new(PAGE + 7, 1, 3 * PAGE).unwrap()).write(0, &[42], Reason::Model).unwrap();
    let registry = Registry::new(Options::default());
    registry.register_system("a", &key, PAGE as u64, PAGE as u64).unwrap();
    let buffer = registry.locate("a", 7, 1).unwrap().into_buffer();
    let (descriptor, at) = opened(&buffer).unwrap();
    assert_eq!((byte(descriptor, at), buffer.share().unwrap().share.byte_size()), (42, PAGE));
    assert!(!buffer.share().unwrap().share.is_sealed());
}

#[test]
fn an_object_that_is_not_the_registered_one_is_not_opened() {
    let key = key("replaced");
    let mut mine = OwnedRegion::create(&key, PAGE).unwrap();
    let registry = Registry::new(Options::default());
    registry.register_system("a", &key, 0, PAGE as u64).unwrap();
    let buffer = registry.locate("a", 0, 1).unwrap().into_buffer();
    mine.unlink().unwrap();
    assert!(opened(&buffer).is_err(), "its key is gone");
    let _other = OwnedRegion::create(&key, PAGE).unwrap();
    assert!(opened(&buffer).is_err(), "its key leads to another object");
}

#[test]
fn a_lease_is_opened_although_its_client_has_its_descriptor() {
    let account = Pools::new(LeaseLimits::default()).open();
    let borrowed = account.borrow(PAGE as u64).unwrap();
    let sent = borrowed.descriptor.unwrap();
    File::from(sent).write_all_at(&[9], 5).unwrap();
    let buffer = borrowed.lease.buffer(Extent::new(5, 1, PAGE).unwrap());
    let (descriptor, at) = opened(&buffer).unwrap();
    assert_eq!(byte(descriptor, at), 9);
    assert!(buffer.share().unwrap().share.is_sealed());
}

#[test]
fn a_loss_found_by_another_process_fails_requests_until_a_new_registration() {
    let key = key("lost");
    let _mine = OwnedRegion::create(&key, 2 * PAGE).unwrap();
    let registry = Registry::new(Options::default());
    registry.register_system("a", &key, 0, 2 * PAGE as u64).unwrap();
    let buffer = registry.locate("a", 0, 8).unwrap().into_buffer();
    assert_eq!(buffer.fault(), None);
    buffer.share().unwrap().share.lose(PAGE + 1);
    let fault = buffer.fault().unwrap();
    assert!(
        fault.contains("region 'a' can no longer be used") && fault.contains(&format!("offset {}", PAGE + 1)),
        "{fault}"
    );
    assert!(registry.locate("a", 0, 8).is_err());
    registry.register_system("a", &key, 0, 2 * PAGE as u64).unwrap();
    assert_eq!(registry.locate("a", 0, 8).unwrap().into_buffer().fault(), None);
}

#[test]
fn memory_for_the_servers_processes_is_reused() {
    let account = Pools::new(LeaseLimits::default()).open();
    let first = account.take(100).unwrap();
    account.put_back(&first);
    let held = first.name();
    let second = account.take(100).unwrap();
    assert_ne!(second.name(), held, "the first one is still in use");
    drop(first);
    assert_eq!(account.take(100).unwrap().name(), held);
}
