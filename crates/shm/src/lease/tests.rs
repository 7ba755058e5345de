//! Do leases behave as documented?
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::sync::Arc;

use nerite_memory::{Extent, Reason};

use super::*;
use crate::ErrorKind;

const PAGE: u64 = LEASE_BYTES_MIN as u64;

fn pools(bytes_max: u64, session_bytes_max: u64) -> Arc<Pools> {
    Pools::new(LeaseLimits { bytes_max, session_bytes_max })
}

fn adopt(borrowed: &mut BorrowedLease) -> AdoptedLease {
    AdoptedLease::adopt(borrowed.descriptor.take().unwrap(), borrowed.lease.byte_size()).unwrap()
}

fn scribble(mine: &AdoptedLease, text: &[u8]) {
    mine.slot(Extent::new(0, text.len(), mine.byte_size()).unwrap()).write(0, text, Reason::Model).unwrap();
}

fn read(lease: &Arc<Lease>, len: u64) -> Vec<u8> {
    let buffer = lease.buffer(lease.locate(0, len).unwrap());
    let mut bytes = vec![0; buffer.len()];
    buffer.copy_to(&mut bytes, Reason::Model);
    bytes
}

#[test]
fn both_sides_of_a_lease_share_its_memory() {
    let account = pools(1 << 20, 1 << 20).open();
    let mut borrowed = account.borrow(10).unwrap();
    let mine = adopt(&mut borrowed);
    scribble(&mine, b"hello");
    assert_eq!(read(&borrowed.lease, 6), b"hello\0");
}

#[test]
fn nobody_can_change_the_size_of_a_lease_or_unseal_it() {
    let account = pools(1 << 20, 1 << 20).open();
    let borrowed = account.borrow(5000).unwrap();
    let file = File::from(borrowed.descriptor.unwrap());
    assert_eq!(file.metadata().unwrap().len(), 8192);
    for size in [0, 4096, 8191, 8193, 1 << 20] {
        assert!(file.set_len(size).is_err(), "{size} bytes");
    }
    assert_eq!(memfd::seals(&file).unwrap() & memfd::SEALS, memfd::SEALS);
}

#[test]
fn a_file_that_can_shrink_or_has_another_size_is_not_adopted() {
    let account = pools(1 << 20, 1 << 20).open();
    let borrowed = account.borrow(1).unwrap();
    let size = AdoptedLease::adopt(borrowed.descriptor.unwrap(), 8192).unwrap_err();
    assert!(matches!(size, AdoptError::Size { have: 4096, stated: 8192 }), "{size}");
    let plain = File::open("/proc/self/exe").unwrap();
    assert!(AdoptedLease::adopt(plain.into(), 4096).is_err());
}

#[test]
fn a_returned_lease_is_lent_only_to_the_same_session() {
    let pools = pools(1 << 20, 1 << 20);
    let (mine, other) = (pools.open(), pools.open());
    let mut borrowed = mine.borrow(PAGE).unwrap();
    scribble(&adopt(&mut borrowed), b"secret");
    let name = borrowed.lease.name();
    drop(borrowed);
    mine.give_back(&name.to_string()).unwrap();

    let strange = other.borrow(PAGE).unwrap();
    assert!(strange.lease.name() != name && strange.descriptor.is_some());
    assert_eq!(read(&strange.lease, 6), [0; 6]);

    let again = mine.borrow(PAGE).unwrap();
    assert!(again.lease.name() == name && again.descriptor.is_none());
    assert_eq!(read(&again.lease, 6), b"secret");
}

#[test]
fn a_lease_in_use_is_not_lent_again() {
    let account = pools(1 << 20, 1 << 20).open();
    let borrowed = account.borrow(1).unwrap();
    let input = borrowed.lease.buffer(borrowed.lease.locate(0, 4).unwrap());
    let name = borrowed.lease.name();
    drop(borrowed);
    account.give_back(&name.to_string()).unwrap();
    assert!(account.borrow(1).unwrap().lease.name() != name);
    drop(input);
    assert!(account.borrow(1).unwrap().lease.name() == name);
}

#[test]
fn a_name_is_found_while_it_is_lent() {
    let pools = pools(1 << 20, 1 << 20);
    let account = pools.open();
    let name = account.borrow(1).unwrap().lease.name().to_string();
    assert!(pools.find(&name).is_some() && account.find(&name).is_some());
    assert!(pools.open().find(&name).is_none(), "another session asks the pools, as HTTP does");
    account.give_back(&name).unwrap();
    assert!(pools.find(&name).is_none() && account.find(&name).is_none());
    assert_eq!(account.give_back(&name), Err(LeaseError::Unknown));
    assert_eq!(account.give_back("lease-nonsense"), Err(LeaseError::Unknown));
}

#[test]
fn a_closed_account_frees_all_leases_that_requests_do_not_hold() {
    let pools = pools(1 << 20, 1 << 20);
    let account = pools.open();
    let lease = account.borrow(PAGE).unwrap().lease;
    let idle = account.borrow(3 * PAGE).unwrap().lease.name().to_string();
    account.give_back(&idle).unwrap();
    let input = lease.buffer(lease.locate(0, 4).unwrap());
    let name = lease.name().to_string();
    drop(lease);
    account.close();
    assert!(pools.find(&name).is_none());
    assert_eq!(account.borrow(1).unwrap_err(), LeaseError::Closed);
    let counts = pools.counts();
    assert_eq!((counts.sessions, counts.leases, counts.bytes, counts.idle), (0, 1, PAGE, 0));
    drop(input);
    assert_eq!(pools.counts(), LeaseCounts::default());
}

#[track_caller]
fn check_kept(returns: bool, left: [u8; 4]) {
    let account = pools(1 << 20, 1 << 20).open();
    let mut borrowed = account.borrow(PAGE).unwrap();
    let kept = adopt(&mut borrowed);
    scribble(&kept, b"mine");
    let name = borrowed.lease.name().to_string();
    drop(borrowed);
    if returns {
        account.give_back(&name).unwrap();
    }
    account.close();
    let mut found = [1; 4];
    kept.buffer(Extent::new(0, 4, kept.byte_size()).unwrap()).copy_to(&mut found, Reason::Model);
    assert_eq!(found, left, "returned: {returns}");
}

#[test]
fn a_mapping_is_empty_after_a_return_and_keeps_its_bytes_without() {
    check_kept(true, [0; 4]);
    check_kept(false, *b"mine");
}

#[test]
fn a_cancelled_lease_is_freed_or_idle() {
    let pools = pools(1 << 20, 1 << 20);
    let account = pools.open();
    account.cancel(account.borrow(1).unwrap());
    assert_eq!(pools.counts().leases, 0, "its descriptor never left");
    let name = account.borrow(1).unwrap().lease.name().to_string();
    account.give_back(&name).unwrap();
    account.cancel(account.borrow(1).unwrap());
    assert_eq!(pools.counts().idle, 1, "the client has this one mapped");
}

#[test]
fn a_placed_lease_keeps_its_descriptor_until_it_is_fetched() {
    let pools = pools(1 << 20, 1 << 20);
    let account = pools.open();
    let name = account.place(PAGE, 0).unwrap().name().to_string();
    assert!(pools.find(&name).is_some());
    assert_eq!(pools.open().fetch(&name).unwrap_err(), LeaseError::Unknown, "only its own session may");
    assert!(account.fetch(&name).unwrap().descriptor.is_some());
    assert!(account.fetch(&name).unwrap().descriptor.is_none(), "the client has it");
    account.give_back(&name).unwrap();
    assert_eq!(account.fetch(&name).unwrap_err(), LeaseError::Unknown);
    // A lease that was returned before its descriptor was sent comes with its descriptor when it is lent again.
    let unseen = account.place(3 * PAGE, 0).unwrap().name();
    account.give_back(&unseen.to_string()).unwrap();
    let borrowed = account.borrow(3 * PAGE).unwrap();
    assert!(borrowed.lease.name() == unseen && borrowed.descriptor.is_some());
}

#[test]
fn leases_of_an_abandoned_request_become_idle_and_no_more_are_placed() {
    let pools = pools(1 << 20, 1 << 20);
    let account = pools.open();
    let mine = account.place(PAGE, 7).unwrap().name().to_string();
    let other = account.place(PAGE, 8).unwrap().name().to_string();
    let plain = account.place(PAGE, 0).unwrap().name().to_string();
    let kept = account.place(PAGE, 7).unwrap().name().to_string();
    account.abandon(7, std::slice::from_ref(&kept));
    account.abandon(0, &[]);
    assert!(account.find(&kept).is_some(), "the client has it");
    assert!(account.find(&mine).is_none() && account.find(&other).is_some() && account.find(&plain).is_some());
    assert_eq!(account.place(PAGE, 7).unwrap_err(), LeaseError::Abandoned);
    assert_eq!(account.place(PAGE, 8).unwrap().byte_size() as u64, PAGE);
    for tag in 100..100 + limits::ABANDONED_MAX as u64 {
        account.abandon(tag, &[]);
    }
    assert!(account.place(PAGE, 7).is_ok(), "only so many are remembered");
}

#[test]
fn a_session_is_found_by_its_key_while_it_is_open() {
    let pools = pools(1 << 20, 1 << 20);
    let (first, second) = (pools.open(), pools.open());
    let key = first.key().unwrap();
    assert_ne!(Some(key), second.key());
    assert!(Arc::ptr_eq(&pools.account(key).unwrap(), &first));
    first.close();
    assert!(pools.account(key).is_none());
    drop(second);
    assert!(pools.account(key ^ 1).is_none());
}

#[test]
fn the_last_use_of_a_lease_calls_back_once() {
    let account = pools(1 << 20, 1 << 20).open();
    let memory = adopt(&mut account.borrow(PAGE).unwrap());
    let calls = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let borrowed = memory.with_release_callback(move || {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let buffer = borrowed.buffer(Extent::new(0, 4, borrowed.byte_size()).unwrap());
    drop((memory, borrowed.clone(), borrowed));
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    drop(buffer);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[track_caller]
fn check_borrow(account: &Account, bytes: u64, expect: Result<u64, LeaseErrorKind>) {
    let got = account.borrow(bytes).map(|borrowed| borrowed.lease.byte_size() as u64).map_err(|error| error.kind());
    assert_eq!(got, expect, "{bytes} bytes");
}

#[test]
fn quotas_apply_to_each_session_and_to_all() {
    let pools = pools(8 * PAGE, 5 * PAGE);
    let (first, second) = (pools.open(), pools.open());
    check_borrow(&first, 0, Err(LeaseErrorKind::Invalid));
    check_borrow(&first, 6 * PAGE, Err(LeaseErrorKind::Invalid));
    check_borrow(&first, u64::MAX, Err(LeaseErrorKind::Invalid));
    check_borrow(&first, 4 * PAGE, Ok(4 * PAGE));
    check_borrow(&first, 2 * PAGE, Err(LeaseErrorKind::Full));
    check_borrow(&first, PAGE, Ok(PAGE));
    check_borrow(&second, 4 * PAGE, Err(LeaseErrorKind::Full));
    check_borrow(&second, 3 * PAGE, Ok(3 * PAGE));
    drop(first);
    check_borrow(&second, 2 * PAGE, Ok(2 * PAGE));
    assert_eq!(pools.counts().bytes, 5 * PAGE);
}

#[test]
fn idle_leases_are_freed_for_their_session_and_for_others() {
    let pools = pools(4 * PAGE, 4 * PAGE);
    let (first, second) = (pools.open(), pools.open());
    let idle = |account: &Account| {
        let name = account.borrow(3 * PAGE).unwrap().lease.name();
        account.give_back(&name.to_string()).unwrap();
        name
    };
    let gone = idle(&first);
    check_borrow(&first, 4 * PAGE, Ok(4 * PAGE));
    assert!(first.take_forgotten() == [gone] && first.take_forgotten().is_empty());
    drop(first);
    idle(&second);
    check_borrow(&pools.open(), 2 * PAGE, Ok(2 * PAGE));
    assert_eq!(second.take_forgotten().len(), 1);
}

#[test]
fn a_session_cannot_take_all_leases() {
    let pools = pools(1 << 40, 1 << 40);
    let account = pools.open();
    for _ in 0..LEASES_PER_SESSION_MAX {
        account.borrow(1).unwrap();
    }
    check_borrow(&account, 1, Err(LeaseErrorKind::Full));
    check_borrow(&pools.open(), 1, Ok(PAGE));
}

/// What an account that has used its quota borrows without freeing idle leases.
#[track_caller]
fn check_at_once(account: &Account, bytes: u64, expect: Option<u64>) {
    let borrowed = account.borrow_at_once(bytes).unwrap();
    assert_eq!(borrowed.map(|borrowed| borrowed.lease.byte_size() as u64), expect);
}

#[test]
fn a_returned_lease_and_one_that_fits_are_borrowed_at_once_and_others_are_not() {
    let pools = pools(12 * PAGE, 8 * PAGE);
    let account = pools.open();
    let lease = account.borrow(8 * PAGE).unwrap().lease;
    check_at_once(&account, 1, None);
    account.give_back(&lease.name().to_string()).unwrap();
    drop(lease);
    // A lease of one page is not lent in place of eight.
    check_at_once(&account, 1, None);
    check_at_once(&account, 8 * PAGE, Some(8 * PAGE));
    let other = pools.open();
    check_at_once(&other, 4 * PAGE, Some(4 * PAGE));
    // Now the quota of all sessions is used.
    check_at_once(&other, 1, None);
    assert_eq!(pools.counts().leases, 2);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of leases take Miri minutes")]
fn a_lease_beyond_the_number_of_all_sessions_is_not_borrowed_at_once() {
    let pools = pools(1 << 40, 1 << 40);
    let permits: Vec<_> = std::iter::from_fn(|| pools.admit_at_once(0)).collect();
    assert_eq!(permits.len(), LEASES_MAX);
    check_at_once(&pools.open(), 1, None);
}

#[test]
fn idle_leases_are_freed_after_their_rounds() {
    let pools = pools(1 << 20, 1 << 20);
    let account = pools.open();
    let name = account.borrow(1).unwrap().lease.name().to_string();
    assert_eq!(pools.trim(0), 0, "what is lent stays");
    account.give_back(&name).unwrap();
    assert_eq!(pools.trim(1), 0);
    assert_eq!((pools.counts().idle, pools.counts().idle_bytes), (1, PAGE));
    assert_eq!(pools.trim(1), PAGE);
    assert_eq!(pools.counts(), LeaseCounts { sessions: 1, ..LeaseCounts::default() });
}

#[track_caller]
fn check_locate(offset: u64, byte_size: u64, text: Option<&str>) {
    let account = pools(1 << 20, 1 << 20).open();
    let lease = account.borrow(1).unwrap().lease;
    let error = lease.locate(offset, byte_size).err();
    let name = lease.name().to_string();
    assert_eq!(error.as_ref().map(ToString::to_string), text.map(|text| text.replace("NAME", &name)));
    assert!(error.is_none_or(|error| error.kind() == ErrorKind::Invalid));
}

#[test]
fn bounds_have_the_same_error_texts_as_for_regions() {
    check_locate(0, 4096, None);
    check_locate(4095, 0, None);
    check_locate(
        4096,
        0,
        Some("Invalid offset for shared memory region: 'NAME': it has 4096 bytes, offset 4096 is past the last"),
    );
    check_locate(
        1,
        4096,
        Some(
            "Invalid offset + byte size for shared memory region: 'NAME': it has 4096 bytes, asked for 4096 at offset 1",
        ),
    );
    check_locate(
        1,
        u64::MAX,
        Some(
            "Integer overflow detected: byte_size (18446744073709551615) + offset (1) exceeds maximum value \
             (18446744073709551615) for region 'NAME'",
        ),
    );
}

/// Maps an empty file over the lease's memory. This has the effect of a system that has no page left.
fn take_memory_away(lease: &Lease) {
    // SAFETY: the name is a static C string.
    let empty = unsafe { libc::memfd_create(c"nerite-empty".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(empty >= 0);
    let (at, prot) = (lease.memory.mapping.base().as_ptr().cast(), libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: the range is the lease's mapping. The lease unmaps it at its end, whatever is mapped there then.
    let mapped = unsafe { libc::mmap(at, lease.byte_size(), prot, libc::MAP_SHARED | libc::MAP_FIXED, empty, 0) };
    assert_eq!(mapped, at);
    // SAFETY: memfd_create has returned this descriptor, and nothing else owns it.
    drop(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(empty) });
}

#[test]
fn a_lease_that_lost_memory_is_reported_and_not_lent_again() {
    let account = pools(1 << 20, 1 << 20).open();
    let lease = account.borrow(2 * PAGE).unwrap().lease;
    let name = lease.name().to_string();
    let input = lease.buffer(lease.locate(PAGE, 4).unwrap());
    assert_eq!(lease.fault(), None);
    take_memory_away(&lease);
    assert_eq!(input.read_u32(0), Some(0));
    let text = format!(
        "lease '{name}' can no longer be used: the system had no memory for it when it was touched at offset 4096; return it \
         and borrow another"
    );
    assert_eq!(input.fault(), Some(text));
    drop((input, lease));
    account.give_back(&name).unwrap();
    assert!(account.borrow(2 * PAGE).unwrap().lease.name().to_string() != name);
}

/// Whether the lease's mapping is marked for huge pages. `None` if the system does not support them.
fn is_marked_for_huge_pages(lease: &Lease) -> Option<bool> {
    let flags = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let start = format!("{:x}-", lease.memory.mapping.base().as_ptr().addr());
    let mine = flags.lines().skip_while(|line| !line.starts_with(&start)).find(|line| line.starts_with("VmFlags:"))?;
    std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists().then(|| mine.contains(" hg"))
}

#[test]
fn leases_that_fill_huge_pages_ask_for_them() {
    let account = pools(1 << 30, 1 << 30).open();
    for (bytes, expects) in [(PAGE, false), (1 << 20, false), (2 << 20, true), (2 << 21, true), (64 << 20, true)] {
        let lease = account.borrow(bytes).unwrap().lease;
        assert_eq!(is_marked_for_huge_pages(&lease).unwrap_or(expects), expects, "{bytes} bytes");
    }
}

#[test]
fn a_refusal_names_all_numbers() {
    let account = pools(16 << 10, 12 << 10).open();
    let _lent = account.borrow(5000).unwrap();
    for (bytes, text) in [
        (12_289, "a lease of 12289 bytes is larger than a session may have, 12288 (--session-max-bytes)"),
        (
            8000,
            "a lease of 8192 bytes does not fit: the session has 8192 of 12288 in 1 leases of 1024; return some or raise \
             --session-max-bytes",
        ),
    ] {
        assert_eq!(account.borrow(bytes).unwrap_err().to_string(), text);
    }
}
