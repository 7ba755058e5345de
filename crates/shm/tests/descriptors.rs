//! Does a refused registration leak a descriptor or a mapping?
#![allow(clippy::unwrap_used)]

use nerite_shm::{Options, OwnedRegion, Registry};

fn entries(path: &str) -> usize {
    std::fs::read_dir(path).unwrap().count()
}

/// The only test of its process, because it counts the process's descriptors.
#[test]
#[ignore = "alone: counts descriptors and mappings (own process)"]
fn ten_thousand_refused_registrations_leave_no_descriptor_and_no_mapping() {
    let mine = OwnedRegion::create(&format!("/nerite-descriptors-{}", std::process::id()), 4096).unwrap();
    let registry = Registry::new(Options { regions_max: 1, ..Options::default() });
    let mappings = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.ends_with(mine.key())).count()
    };
    let missing = format!("{}-missing", mine.key());
    registry.register_system("held", mine.key(), 0, 4096).unwrap();
    let before = (entries("/proc/self/fd"), mappings());
    for _ in 0..1000 {
        assert!(registry.register_system("a", "/", 0, 64).is_err());
        assert!(registry.register_system("held", mine.key(), 0, 64).is_err());
        assert!(registry.register_system("a", &missing, 0, 64).is_err());
        assert!(registry.register_system("a", "/.", 0, 64).is_err());
        assert!(registry.register_system("a", mine.key(), 0, 4097).is_err());
        assert!(registry.register_system("a", mine.key(), u64::MAX, u64::MAX).is_err());
        assert!(registry.register_system("a", mine.key(), 4097, 0).is_err());
        assert!(registry.register_system("a", mine.key(), 0, 0).is_err());
        assert!(registry.register_system("a", mine.key(), 1, 64).is_err());
        assert!(registry.register_system("a", mine.key(), 0, 64).is_err());
    }
    assert_eq!((entries("/proc/self/fd"), mappings()), before);
    assert_eq!((registry.counts().refused, registry.counts().mapped), (10_000, 1));
}
