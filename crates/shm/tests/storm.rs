//! Is anything leaked or freed too early under concurrent use?
#![allow(clippy::unwrap_used)]

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use nerite_memory::{Extent, Reason};
use nerite_shm::{ErrorKind, Options, OwnedRegion, Registry};

const THREADS: u64 = 64;
const ROUNDS: u64 = 400;
const NAMES: u64 = 8;
const BYTES: usize = 3 * 4096;

/// A small generator of random numbers. Each thread has its own, with the same choices in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

#[test]
fn sixty_four_threads_on_eight_names_leave_nothing_mapped() {
    let objects: Vec<_> = (0..NAMES)
        .map(|n| OwnedRegion::create(&format!("/nerite-storm-{}-{n}", std::process::id()), BYTES).unwrap())
        .collect();
    for (n, object) in objects.iter().enumerate() {
        // Each page of an object begins with the object's number, so that a reader recognises any mapped window.
        for page in 0..BYTES / 4096 {
            let extent = Extent::new(page * 4096, 8, BYTES).unwrap();
            object.slot(extent).write(0, &(n as u64).to_le_bytes(), Reason::Model).unwrap();
        }
    }
    let registry = Registry::new(Options::default());
    let (start, used) = (Barrier::new(THREADS as usize), AtomicU64::new(0));
    thread::scope(|scope| {
        for seed in 1..=THREADS {
            let (registry, objects, start, used) = (&registry, &objects, &start, &used);
            scope.spawn(move || {
                start.wait();
                let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let mut held = Vec::new();
                for _ in 0..ROUNDS {
                    let n = dice.roll(NAMES);
                    step(registry, &objects[n as usize], n, &mut dice, &mut held, used);
                }
            });
        }
    });
    assert!(used.load(Ordering::Relaxed) > 0, "no region was ever found");
    registry.unregister_all_system().unwrap();
    let counts = registry.counts();
    assert_eq!((counts.registered, counts.mapped, counts.mapped_bytes), (0, 0, 0));
    assert_eq!(registry.system_status(None), Ok(vec![]));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    for object in &objects {
        assert_eq!(maps.lines().filter(|line| line.ends_with(object.key())).count(), 1, "the client's own mapping");
    }
}

fn step(
    registry: &Registry,
    object: &OwnedRegion,
    n: u64,
    dice: &mut Dice,
    held: &mut Vec<(u64, nerite_memory::Buffer)>,
    used: &AtomicU64,
) {
    let name = format!("region {n}");
    match dice.roll(10) {
        0 | 1 => {
            let page = dice.roll(3) * 4096;
            if let Err(refused) = registry.register_system(&name, object.key(), page, 4096) {
                assert_eq!(refused.kind(), ErrorKind::Taken, "{refused}");
            }
        }
        2 => registry.unregister_system(&name).unwrap(),
        3 if dice.roll(8) == 0 => registry.unregister_all_system().unwrap(),
        3 | 4 => {
            let listed = registry.system_status(None).unwrap();
            assert!(listed.is_sorted_by(|a, b| a.name < b.name), "each name once, in order");
        }
        5 => held.clear(),
        _ => match registry.locate(&name, 0, 8) {
            Ok(located) => {
                used.fetch_add(1, Ordering::Relaxed);
                held.push((n, located.into_buffer()));
            }
            Err(unknown) => assert_eq!(unknown.kind(), ErrorKind::Missing, "{unknown}"),
        },
    }
    for (n, buffer) in held.iter() {
        assert_eq!(buffer.read_u32(0), Some(*n as u32), "a held region keeps its own memory");
    }
    held.truncate(16);
}

/// A steady stream of requests keeps an unregistered region mapped. A new registration under its name ends that at once.
#[test]
fn a_new_registration_ends_an_unregistered_region_under_load() {
    let key = format!("/nerite-steady-{}", std::process::id());
    let old = OwnedRegion::create(&format!("{key}-old"), 4096).unwrap();
    let new = OwnedRegion::create(&format!("{key}-new"), 8192).unwrap();
    let registry = Registry::new(Options::default());
    registry.register_system("a", old.key(), 0, 4096).unwrap();
    let mut in_flight = registry.locate("a", 0, 4096).unwrap();
    registry.unregister_system("a").unwrap();
    for _ in 0..100 {
        in_flight = registry.locate("a", 0, 4096).unwrap();
    }
    registry.register_system("a", new.key(), 0, 8192).unwrap();
    assert_eq!(in_flight.region().byte_size(), 4096);
    assert_eq!(registry.locate("a", 0, 8192).unwrap().region().byte_size(), 8192);
    in_flight = registry.locate("a", 0, 1).unwrap();
    assert_eq!(registry.counts().mapped, 1);
    drop(in_flight);
}
