//! Does an operator see the current state of a region and of a lease, beside the original one?
#![allow(clippy::unwrap_used)]

#[path = "../../memory/tests/eventually/assert.rs"]
mod eventually;

use eventually::assert_eventually;
use nerite_shm::{LeaseLimits, ObjectNow, Options, OwnedRegion, Pools, Registry};

fn key(name: &str) -> String {
    format!("/nerite-inspect-{}-{name}", std::process::id())
}

#[test]
fn a_region_shows_its_users_its_state_and_its_object_then_and_now() {
    let (key, registry) = (key("states"), Registry::new(Options::default()));
    let mut object = OwnedRegion::create(&key, 8192).unwrap();
    registry.register_system("a", &key, 4096, 4096).unwrap();
    let state = registry.inspect_one("a").unwrap();
    assert_eq!((state.registered, state.users, state.lost_at, state.object_bytes), (true, 0, None, 8192));
    assert_eq!(state.object_now, ObjectNow::Same { byte_size: 8192 });
    let buffer = registry.locate("a", 0, 64).unwrap().into_buffer();
    assert_eq!(registry.inspect_one("a").unwrap().users, 1);
    registry.unregister_system("a").unwrap();
    let state = registry.inspect_one("a").unwrap();
    assert_eq!((state.registered, state.users), (false, 1));
    object.unlink().unwrap();
    assert_eq!(registry.inspect_one("a").unwrap().object_now, ObjectNow::Gone);
    let _other = OwnedRegion::create(&key, 4096).unwrap();
    assert_eq!(registry.inspect_one("a").unwrap().object_now, ObjectNow::Another);
    drop(buffer);
    assert_eq!(registry.inspect_one("a"), None);
    // Looking keeps nothing. An object without a name is unmapped by another thread.
    assert_eventually(|| registry.counts().mapped, 0);
}

#[test]
fn regions_are_listed_in_pages_by_name_and_each_once() {
    let (key, registry) = (key("pages"), Registry::new(Options::default()));
    let _object = OwnedRegion::create(&key, 4096).unwrap();
    let names: Vec<String> = (0..50).map(|number| format!("r{number:02}")).collect();
    for name in names.iter().rev() {
        registry.register_system(name, &key, 0, 4096).unwrap();
    }
    let mut listed: Vec<String> = Vec::new();
    loop {
        let page = registry.inspect(listed.last().map(String::as_str), 7);
        if page.is_empty() {
            break;
        }
        listed.extend(page.iter().map(|state| state.record.name.to_string()));
    }
    assert_eq!(listed, names);
}

#[test]
fn leases_are_counted_by_size_and_shown_with_their_first_digits() {
    let pools = Pools::new(LeaseLimits { bytes_max: 1 << 20, session_bytes_max: 1 << 20 });
    let account = pools.open();
    let lent = account.borrow(5000).unwrap();
    let idle = account.borrow(5000).unwrap();
    account.give_back(&idle.lease.name().to_string()).unwrap();
    drop(idle);
    let held = pools.open();
    let borrowed = held.borrow(4096).unwrap();
    held.close();
    let (classes, bytes_peak) = pools.classes();
    let counts: Vec<_> = classes.iter().map(|c| (c.byte_size, c.lent, c.idle, c.leases, c.peak)).collect();
    assert_eq!(counts, [(4096, 0, 0, 1, 1), (8192, 1, 1, 2, 2)]);
    assert_eq!(bytes_peak, 20_480);
    drop(borrowed);
    assert_eq!(pools.classes().0[0].leases, 0);
    let leases = account.leases();
    assert_eq!(leases.iter().filter(|lease| lease.lent).count(), 1);
    let name = lent.lease.name().to_string();
    let beginning = name[..12].to_owned() + "…";
    assert!(leases.iter().any(|lease| lease.name == beginning && lease.users == 1), "{leases:?}");
}
