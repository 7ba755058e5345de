//! Which thread unmaps memory that a request used last, and who pays for it until then?
#![allow(clippy::unwrap_used)]

#[path = "../../memory/tests/eventually/assert.rs"]
mod eventually;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use eventually::{PATIENCE, assert_eventually};
use nerite_memory::UNMAPPER;
use nerite_shm::limits::{
    FREED_HERE_BYTES_MAX, OBJECTS_OPEN_MAX, UNMAPPED_HERE_BYTES_MAX, UNMAPPED_HERE_TOGETHER_BYTES_MAX,
};
use nerite_shm::{
    Account, LeaseErrorKind, LeaseLimits, Options, OwnedRegion, Pools, Registrant, Registries, Registry, Rights,
    keep_until_freed,
};
use nerite_watchdog::{FrontEnd, watched};

const LITTLE: usize = UNMAPPED_HERE_BYTES_MAX;
/// So many leases of `LITTLE` bytes in each of three sessions are too much for one thread, but not those of one session.
const LITTLE_COUNT: usize = 100;
const MUCH: usize = 64 << 20;
const PAGE: u64 = 4096;
/// The thread that unmaps regions whose objects have many pages.
const FREER: &str = "nerite-free";

/// Dropped after its region was unmapped. Sends the name of the thread that does so, which waits for an answer.
struct Halt {
    thread: Sender<Option<String>>,
    go_on: Receiver<()>,
}

impl Drop for Halt {
    fn drop(&mut self) {
        let _ = self.thread.send(thread::current().name().map(str::to_owned));
        let _ = self.go_on.recv_timeout(PATIENCE);
    }
}

fn halt() -> (Halt, Receiver<Option<String>>, Sender<()>) {
    let ((thread, thread_seen), (answer, go_on)) = (channel(), channel());
    (Halt { thread, go_on }, thread_seen, answer)
}

/// Blocks the unmapping thread until the sender is used or dropped.
fn halt_unmapper() -> Sender<()> {
    let (halt, thread_seen, answer) = halt();
    UNMAPPER.push(0, Box::new(halt));
    assert_eq!(thread_seen.recv_timeout(PATIENCE).unwrap().as_deref(), Some("nerite-unmap"));
    answer
}

fn object(name: &str, byte_size: usize) -> OwnedRegion {
    OwnedRegion::create(&format!("/nerite-unmapping-{name}-{}", std::process::id()), byte_size).unwrap()
}

/// How many mappings this process has of the object.
fn mappings(object: &OwnedRegion) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.ends_with(&format!("/dev/shm{}", object.key()))).count()
}

#[test]
fn a_large_region_that_a_request_used_last_is_unmapped_on_another_thread_and_paid_until_then() {
    let registry = Registry::new(Options { regions_max: 1, ..Options::default() });
    let mine = object("large", MUCH);
    let (halt, thread_seen, answer) = halt();
    registry.register_system_as(&Rights::Any, Box::new(Mutex::new(halt)), "a", mine.key(), 0, MUCH as u64).unwrap();
    let input = registry.locate("a", 0, 4).unwrap().into_buffer();
    registry.unregister_system("a").unwrap();
    assert_eq!((mappings(&mine), registry.counts().mapped), (2, 1));
    assert_eq!(registry.still_used(), 1);
    drop(input);
    assert_eq!((registry.system_status(None), registry.still_used()), (Ok(vec![]), 0));
    assert_eq!(thread_seen.recv_timeout(PATIENCE).unwrap().as_deref(), Some(FREER));
    assert_eq!((mappings(&mine), registry.counts().mapped, registry.counts().mapped_bytes), (1, 1, MUCH as u64));
    let refused = registry.register_system("b", mine.key(), 0, 4096).unwrap_err().to_string();
    assert!(refused.contains("1 regions of"), "{refused}");
    answer.send(()).unwrap();
    assert_eventually(|| registry.counts().mapped, 0);
    registry.register_system("b", mine.key(), 0, 4096).unwrap();
}

#[test]
fn a_small_region_and_one_that_nobody_uses_are_unmapped_at_once() {
    let registry = Registry::new(Options::default());
    let (small, large) = (object("small", LITTLE), object("unused", MUCH));
    registry.register_system("small", small.key(), 0, LITTLE as u64).unwrap();
    registry.register_system("large", large.key(), 0, MUCH as u64).unwrap();
    let input = registry.locate("small", 0, 4).unwrap().into_buffer();
    let (freeing, freed) = channel::<()>();
    keep_until_freed(Arc::new(Mutex::new(freeing)), || registry.unregister_all_system().unwrap());
    assert!(freed.recv().is_err(), "the sender is dropped when the large one is unmapped");
    assert_eq!((mappings(&large), registry.counts().mapped), (1, 1));
    drop(input);
    assert_eq!((mappings(&small), registry.counts().mapped), (1, 0));
}

/// An object with so many pages that no thread frees them which may not wait. Returns its key and a descriptor.
fn filled(name: &str) -> (String, File) {
    let key = format!("/nerite-unmapping-{name}-{}", std::process::id());
    let file = File::options().create_new(true).read(true).write(true).open(format!("/dev/shm{key}")).unwrap();
    for at in 0..2 * FREED_HERE_BYTES_MAX / PAGE {
        file.write_at(&[1], at * PAGE).unwrap();
    }
    (key, file)
}

/// Whether this process has a descriptor of the object, which was unlinked.
fn is_open(key: &str) -> bool {
    let path = format!("/dev/shm{key} (deleted)");
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    descriptors.flatten().any(|entry| std::fs::read_link(entry.path()).is_ok_and(|to| to.to_str() == Some(&path)))
}

#[test]
fn one_page_of_an_unlinked_object_with_many_pages_is_unmapped_on_another_thread() {
    let registry = Registry::new(Options::default());
    for (name, is_used) in [("unlinked", false), ("unlinked-used", true)] {
        let (key, file) = filled(name);
        let (halt, thread_seen, answer) = halt();
        registry.register_system_as(&Rights::Any, Box::new(Mutex::new(halt)), "a", &key, 0, PAGE).unwrap();
        std::fs::remove_file(format!("/dev/shm{key}")).unwrap();
        drop(file);
        let input = is_used.then(|| registry.locate("a", 0, 4).unwrap().into_buffer());
        registry.unregister_system("a").unwrap();
        drop(input);
        assert_eq!(thread_seen.recv_timeout(PATIENCE).unwrap().as_deref(), Some(FREER), "{name}");
        // It counts until its pages are free.
        assert_eq!(registry.counts().mapped, 1);
        answer.send(()).unwrap();
        assert_eventually(|| registry.counts().mapped, 0);
    }
}

#[test]
fn the_objects_of_refused_registrations_are_closed_on_another_thread_and_few_of_an_owner_are_open() {
    let registry = Registry::new(Options::default());
    let (key, file) = filled("refused");
    let beyond = 1 << 40;
    // The owner's thread is halted, so that the objects wait.
    let (halt, thread_seen, answer) = halt();
    registry.register_system_as(&Rights::Any, Box::new(Mutex::new(halt)), "a", &key, 0, PAGE).unwrap();
    registry.unregister_system("a").unwrap();
    assert_eq!(thread_seen.recv_timeout(PATIENCE).unwrap().as_deref(), Some(FREER));
    for _ in 0..OBJECTS_OPEN_MAX {
        let refused = registry.register_system("b", &key, beyond, PAGE).unwrap_err().to_string();
        assert!(!refused.contains("at most"), "{refused}");
    }
    let refused = registry.register_system("b", &key, beyond, PAGE).unwrap_err().to_string();
    assert!(refused.contains("64 objects that this client wanted registered are open, at most 64 may be"), "{refused}");
    let other = Registry::new(Options::default());
    other.register_system("b", &key, 0, PAGE).unwrap();
    std::fs::remove_file(format!("/dev/shm{key}")).unwrap();
    drop(file);
    assert!(is_open(&key));
    answer.send(()).unwrap();
    assert_eventually(|| is_open(&key), false);
    let refused = registry.register_system("b", &key, 0, PAGE).unwrap_err().to_string();
    assert!(refused.contains("no object of that name"), "{refused}");
}

#[test]
fn clients_that_share_names_pay_for_their_own_regions_and_wait_for_no_objects_of_each_other() {
    let registries: Registries<u32> = Registries::new(true, None);
    let (key, _file) = filled("common");
    let halted = [1, 2].map(|owner| {
        let (payer, (halt, thread_seen, answer)) = (registries.open(&owner).unwrap(), halt());
        let by = Registrant { rights: &Rights::Any, payer: Some(payer.payer()), attached: Box::new(Mutex::new(halt)) };
        registries.operator().register_system_by(by, &owner.to_string(), &key, 0, PAGE).unwrap();
        assert_eq!((payer.counts().registered, payer.counts().mapped), (0, 1));
        (payer, thread_seen, answer)
    });
    let common = registries.operator();
    assert_eq!((common.counts().registered, common.counts().mapped, registries.counts().mapped), (2, 0, 2));
    std::fs::remove_file(format!("/dev/shm{key}")).unwrap();
    common.unregister_all_system().unwrap();
    // Each of them is being freed while the other one is not free yet.
    for (payer, thread_seen, _) in &halted {
        assert_eq!(thread_seen.recv_timeout(PATIENCE).unwrap().as_deref(), Some(FREER));
        assert_eq!(payer.counts().mapped, 1);
    }
    for (payer, _, answer) in &halted {
        answer.send(()).unwrap();
        assert_eventually(|| payer.counts().mapped, 0);
    }
}

#[test]
fn the_leases_of_a_session_that_ends_count_until_they_are_unmapped() {
    let pools = Pools::new(LeaseLimits { bytes_max: 1 << 30, session_bytes_max: 1 << 30 });
    let account = pools.open();
    for _ in 0..4 {
        account.borrow(MUCH as u64).unwrap();
    }
    let answer = halt_unmapper();
    account.close();
    assert_eq!((pools.counts().leases, pools.counts().bytes), (4, 4 * MUCH as u64));
    answer.send(()).unwrap();
    assert_eventually(|| pools.counts().leases, 0);
    assert_eq!(pools.counts().bytes, 0);
}

#[test]
fn a_lease_that_needs_the_memory_of_idle_ones_is_lent_where_the_thread_may_wait_for_the_kernel() {
    let pools = Pools::new(LeaseLimits { bytes_max: 1 << 30, session_bytes_max: 2 * MUCH as u64 });
    let account = pools.open();
    let make_idle = || {
        let lease = account.borrow(MUCH as u64 + 1).unwrap().lease;
        account.give_back(&lease.name().to_string()).unwrap();
    };
    make_idle();
    assert!(account.borrow_at_once(2 * MUCH as u64).unwrap().is_none());
    assert_eq!(account.borrow(2 * MUCH as u64).unwrap().lease.byte_size(), 2 * MUCH);
    assert_eventually(|| account.used(), (1, 2 * MUCH as u64));
    for lease in account.leases() {
        assert!(lease.lent);
    }
}

#[test]
fn a_thread_that_serves_connections_passes_idle_leases_on_and_may_refuse_a_new_one() {
    let pools = Pools::new(LeaseLimits { bytes_max: 1 << 30, session_bytes_max: MUCH as u64 });
    let account = pools.open();
    let lease = account.borrow(MUCH as u64).unwrap().lease;
    account.give_back(&lease.name().to_string()).unwrap();
    drop(lease);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    // While the unmapping thread is halted, the lease stays mapped and counts.
    let answer = halt_unmapper();
    let refused = runtime.block_on(watched(FrontEnd::Http, async { account.borrow(4096).unwrap_err() }));
    assert_eq!((refused.kind(), account.used()), (LeaseErrorKind::Full, (1, MUCH as u64)));
    answer.send(()).unwrap();
    assert_eventually(|| account.used(), (0, 0));
    assert!(account.borrow(4096).is_ok());
}

#[test]
fn small_leases_of_several_sessions_that_were_idle_too_long_are_passed_on_together() {
    let pools = Pools::new(LeaseLimits { bytes_max: 1 << 30, session_bytes_max: 1 << 30 });
    let accounts: Vec<_> = (0..3).map(|_| pools.open()).collect();
    for account in &accounts {
        let leases: Vec<_> = (0..LITTLE_COUNT).map(|_| account.borrow(LITTLE as u64).unwrap().lease).collect();
        for lease in leases {
            account.give_back(&lease.name().to_string()).unwrap();
        }
    }
    let (count, bytes) = (3 * LITTLE_COUNT as u64, (3 * LITTLE_COUNT * LITTLE) as u64);
    assert!(bytes > UNMAPPED_HERE_TOGETHER_BYTES_MAX && bytes / 3 <= UNMAPPED_HERE_TOGETHER_BYTES_MAX);
    let answer = halt_unmapper();
    assert_eq!((pools.trim(0), pools.counts().leases), (bytes, count));
    answer.send(()).unwrap();
    assert_eventually(|| pools.counts().leases, 0);
}

#[test]
fn a_new_lease_frees_idle_ones_of_as_many_bytes_and_those_of_its_session_first() {
    let pools = Pools::new(LeaseLimits { bytes_max: 16 * PAGE, session_bytes_max: 16 * PAGE });
    let make_idle = |account: &Account| {
        let leases: Vec<_> = (0..6).map(|_| account.place(PAGE, 0).unwrap()).collect();
        for lease in leases {
            account.give_back(&lease.name().to_string()).unwrap();
        }
    };
    let (mine, other) = (pools.open(), pools.open());
    make_idle(&mine);
    make_idle(&other);
    let place = |pages: u64| mine.place(pages * PAGE, 0).unwrap();
    let first = place(6);
    assert_eq!((mine.used(), other.used()), ((1, 6 * PAGE), (6, 6 * PAGE)));
    // This session has no idle lease any more.
    let second = place(5);
    assert_eq!((mine.used(), other.used()), ((2, 11 * PAGE), (1, PAGE)));
    assert_eq!((first.byte_size(), second.byte_size()), (6 * PAGE as usize, 5 * PAGE as usize));
    assert_eq!((mine.take_forgotten().len(), other.take_forgotten().len()), (6, 5));
}

#[test]
fn a_session_gets_its_memory_back_at_once_while_that_of_others_waits() {
    const BYTES: u64 = MUCH as u64 / 4;
    let pools = Pools::new(LeaseLimits { bytes_max: 1 << 30, session_bytes_max: 4 * BYTES });
    let account = pools.open();
    let leases: Vec<_> = (0..4).map(|_| account.borrow(BYTES).unwrap().lease).collect();
    for lease in leases {
        account.give_back(&lease.name().to_string()).unwrap();
    }
    let answer = halt_unmapper();
    assert_eq!((pools.trim(0), account.used()), (4 * BYTES, (4, 4 * BYTES)));
    // No more is unmapped than the new lease needs.
    let lease = account.borrow(2 * BYTES).unwrap().lease;
    assert_eq!((lease.byte_size() as u64, account.used()), (2 * BYTES, (3, 4 * BYTES)));
    answer.send(()).unwrap();
    assert_eventually(|| account.used(), (1, 2 * BYTES));
}
