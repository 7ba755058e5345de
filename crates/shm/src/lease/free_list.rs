//! Which idle lease fits a need, and which has lain here too long?

use std::collections::BTreeMap;

use super::limits::WASTE_MAX;

/// Things that came back, by size. Pure: `T` is a lease, or a number in the tests.
pub(super) struct FreeList<T> {
    by_size: BTreeMap<usize, Vec<Idle<T>>>,
}

struct Idle<T> {
    thing: T,
    rounds: u32,
}

impl<T> FreeList<T> {
    pub(super) fn new() -> FreeList<T> {
        FreeList { by_size: BTreeMap::new() }
    }

    /// Lays a thing of `size` bytes here.
    pub(super) fn put(&mut self, size: usize, thing: T) {
        self.by_size.entry(size).or_default().push(Idle { thing, rounds: 0 });
    }

    /// The smallest thing of at least `need` bytes that may be used, the last laid here first (its pages are warm), unless
    /// it is more than `WASTE_MAX` times as large.
    pub(super) fn take(&mut self, need: usize, may_be_used: impl Fn(&T) -> bool) -> Option<T> {
        for (_, things) in self.by_size.range_mut(need..=need.saturating_mul(WASTE_MAX)) {
            if let Some(at) = things.iter().rposition(|idle| may_be_used(&idle.thing)) {
                return Some(things.remove(at).thing);
            }
        }
        None
    }

    /// One round has passed: what nobody took for more than `rounds_max` of them comes out.
    pub(super) fn age(&mut self, rounds_max: u32) -> Vec<T> {
        let mut stale = Vec::new();
        self.by_size.retain(|_, things| {
            let old = |idle: &mut Idle<T>| {
                idle.rounds = idle.rounds.saturating_add(1);
                idle.rounds > rounds_max
            };
            stale.extend(things.extract_if(.., old).map(|idle| idle.thing));
            !things.is_empty()
        });
        stale
    }

    /// Everything comes out.
    pub(super) fn clear(&mut self) -> Vec<T> {
        let all = std::mem::take(&mut self.by_size);
        all.into_values().flatten().map(|idle| idle.thing).collect()
    }

    /// Everything that lies here.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.by_size.values().flatten().map(|idle| &idle.thing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(sizes: &[usize], need: usize, taken: Option<usize>) {
        let mut free_list = FreeList::new();
        for &size in sizes {
            free_list.put(size, size);
        }
        assert_eq!(free_list.take(need, |_| true), taken, "{need} of {sizes:?}");
        assert_eq!(free_list.iter().count(), sizes.len() - usize::from(taken.is_some()));
    }

    #[test]
    fn the_smallest_that_fits_is_taken() {
        check(&[], 1, None);
        check(&[8, 16, 12], 9, Some(12));
        check(&[8, 16, 12], 8, Some(8));
        check(&[8, 16, 12], 17, None);
        check(&[64], 16, Some(64));
        check(&[65], 16, None);
        check(&[usize::MAX], usize::MAX, Some(usize::MAX));
    }

    #[test]
    fn what_is_in_use_is_passed_over_and_the_warmest_comes_first() {
        let mut free_list = FreeList::new();
        for thing in ["cold", "warm", "busy"] {
            free_list.put(8, thing);
        }
        free_list.put(9, "larger");
        let mut take = || free_list.take(8, |thing| *thing != "busy");
        assert_eq!([take(), take(), take(), take()], [Some("warm"), Some("cold"), Some("larger"), None]);
    }

    #[test]
    fn what_nobody_takes_comes_out_after_its_rounds() {
        let mut free_list = FreeList::new();
        free_list.put(8, "old");
        assert!(free_list.age(1).is_empty());
        free_list.put(8, "new");
        assert_eq!(free_list.age(1), ["old"]);
        assert_eq!(free_list.age(0), ["new"]);
        assert!(free_list.by_size.is_empty());
    }
}
