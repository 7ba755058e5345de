//! Do regions keep their rules in whatever order threads run?
//!
//! Each test runs thousands of orders of its threads. The objects are real, so what goes too early ends the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nerite_memory::{Extent, Reason};
use nerite_shm::{ErrorKind, Options, OwnedRegion, Registry};
use shuttle::thread;

const ORDERS: usize = 10_000;
const PAGE: u64 = 4096;

/// Runs `threads` in many orders: without preference, and such that a few chosen steps are late.
fn in_many_orders(threads: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(threads.clone(), ORDERS);
    shuttle::check_pct(threads, ORDERS, 3);
}

/// An object that begins with `mark`.
fn object(mark: u64) -> OwnedRegion {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let made = OwnedRegion::create(&format!("/nerite-orders-{}-{number}", std::process::id()), PAGE as usize);
    let made = made.expect("there is room for a page in /dev/shm");
    let mut slot = made.slot(Extent::new(0, 8, PAGE as usize).expect("eight bytes of a page"));
    slot.write(0, &mark.to_le_bytes(), Reason::Model).expect("the slot has eight bytes");
    made
}

/// The first number of the region of that name, and the key it comes from; `None` if there is none.
fn first_number(registry: &Registry, name: &str) -> Option<(u32, String)> {
    let located = match registry.locate(name, 0, 8) {
        Ok(located) => located,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Missing, "{error}");
            return None;
        }
    };
    let nerite_shm::Origin::System { key, .. } = located.region().record().origin.clone() else {
        panic!("no system region")
    };
    let buffer = located.into_buffer();
    thread::yield_now();
    Some((buffer.read_u32(0).expect("eight bytes"), key.into()))
}

fn check_nothing_is_left(registry: &Registry) {
    registry.unregister_all_system().expect("clients may");
    let counts = registry.counts();
    assert_eq!((counts.registered, counts.mapped, counts.mapped_bytes), (0, 0, 0));
    assert_eq!(registry.system_status(None), Ok(vec![]));
}

#[test]
fn a_reader_finds_a_region_whole_or_not_at_all() {
    let objects = Arc::new([object(1), object(2)]);
    in_many_orders(move || {
        let registry = Arc::new(Registry::new(Options::default()));
        let writer = {
            let (registry, objects) = (Arc::clone(&registry), Arc::clone(&objects));
            thread::spawn(move || {
                for object in objects.iter() {
                    registry.register_system("a", object.key(), 0, PAGE).expect("the name is free");
                    registry.unregister_system("a").expect("clients may");
                }
            })
        };
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (registry, objects) = (Arc::clone(&registry), Arc::clone(&objects));
                thread::spawn(move || {
                    for _ in 0..2 {
                        let Some((number, key)) = first_number(&registry, "a") else { continue };
                        assert_eq!(objects[number as usize - 1].key(), key);
                    }
                })
            })
            .collect();
        writer.join().expect("no panic");
        readers.into_iter().for_each(|reader| reader.join().expect("no panic"));
        check_nothing_is_left(&registry);
    });
}

#[test]
fn of_two_who_register_a_name_one_has_it() {
    let objects = Arc::new([object(1), object(2)]);
    in_many_orders(move || {
        let registry = Arc::new(Registry::new(Options::default()));
        let writers = [0, 1].map(|at| {
            let (registry, objects) = (Arc::clone(&registry), Arc::clone(&objects));
            thread::spawn(move || registry.register_system("a", objects[at].key(), 0, PAGE))
        });
        let results = writers.map(|writer| writer.join().expect("no panic"));
        let winner = results.iter().position(Result::is_ok).expect("one of them");
        assert!(
            results.iter().filter_map(|result| result.as_ref().err()).all(|error| error.kind() == ErrorKind::Taken)
        );
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
        assert_eq!(first_number(&registry, "a"), Some((winner as u32 + 1, objects[winner].key().to_string())));
        assert_eq!((registry.counts().registered, registry.counts().mapped), (1, 1));
        check_nothing_is_left(&registry);
    });
}

#[test]
fn a_registration_wins_at_once_over_a_dead_region_in_use() {
    let objects = Arc::new([object(1), object(2)]);
    in_many_orders(move || {
        let registry = Arc::new(Registry::new(Options::default()));
        registry.register_system("a", objects[0].key(), 0, PAGE).expect("the name is free");
        let traffic: Vec<_> = (0..2)
            .map(|_| {
                let registry = Arc::clone(&registry);
                thread::spawn(move || {
                    let mut held = None;
                    for _ in 0..3 {
                        held = registry.locate("a", 0, 8).ok().map(nerite_shm::Located::into_buffer).or(held);
                        thread::yield_now();
                    }
                })
            })
            .collect();
        registry.unregister_system("a").expect("clients may");
        registry.register_system("a", objects[1].key(), 0, PAGE).expect("the dead one does not count");
        assert_eq!(first_number(&registry, "a"), Some((2, objects[1].key().to_string())));
        traffic.into_iter().for_each(|one| one.join().expect("no panic"));
        assert_eq!((registry.counts().registered, registry.counts().mapped), (1, 1));
        check_nothing_is_left(&registry);
    });
}

/// All names are in one shard here, so each change copies the entry of the name that stays.
#[test]
fn changes_of_other_names_never_hide_a_region() {
    let objects = Arc::new([object(1), object(2)]);
    in_many_orders(move || {
        let registry = Arc::new(Registry::new(Options::default()));
        registry.register_system("stays", objects[0].key(), 0, PAGE).expect("the name is free");
        let others = ["b", "c"].map(|name| {
            let (registry, objects) = (Arc::clone(&registry), Arc::clone(&objects));
            thread::spawn(move || {
                registry.register_system(name, objects[1].key(), 0, PAGE).expect("the name is free");
                assert!(registry.system_status(Some(name)).is_ok());
                registry.unregister_system(name).expect("clients may");
            })
        });
        for _ in 0..2 {
            assert_eq!(first_number(&registry, "stays").map(|(number, _)| number), Some(1));
            let listed = registry.system_status(None).expect("clients may");
            assert!(listed.is_sorted_by(|a, b| a.name < b.name) && listed.iter().any(|one| &*one.name == "stays"));
        }
        others.into_iter().for_each(|one| one.join().expect("no panic"));
        assert_eq!(registry.system_status(None).map(|listed| listed.len()), Ok(1));
        check_nothing_is_left(&registry);
    });
}

#[test]
fn the_bound_on_regions_holds_and_no_place_is_lost() {
    let made = Arc::new(object(1));
    in_many_orders(move || {
        let registry = Arc::new(Registry::new(Options { regions_max: 2, ..Options::default() }));
        let writers = ["a", "b", "c"].map(|name| {
            let (registry, made) = (Arc::clone(&registry), Arc::clone(&made));
            thread::spawn(move || {
                let held = match registry.register_system(name, made.key(), 0, PAGE) {
                    Ok(()) => registry.locate(name, 0, 8).ok(),
                    Err(_) => None,
                };
                assert!(registry.counts().mapped <= 2);
                registry.unregister_system(name).expect("clients may");
                drop(held);
            })
        });
        writers.into_iter().for_each(|one| one.join().expect("no panic"));
        check_nothing_is_left(&registry);
        for name in ["a", "b"] {
            registry.register_system(name, made.key(), 0, PAGE).expect("both places are free");
        }
        check_nothing_is_left(&registry);
    });
}
