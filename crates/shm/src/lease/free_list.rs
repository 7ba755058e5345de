//! Which idle lease is lent next, and which were idle too long?

use std::collections::BTreeMap;

use super::limits::WASTE_MAX;

/// Returned items by size. Pure: `T` is a lease, or a number in the tests.
pub(super) struct FreeList<T> {
    by_size: BTreeMap<usize, Vec<Idle<T>>>,
}

struct Idle<T> {
    item: T,
    rounds: u32,
}

impl<T> FreeList<T> {
    pub(super) fn new() -> FreeList<T> {
        FreeList { by_size: BTreeMap::new() }
    }

    /// Adds an item of `size` bytes.
    pub(super) fn put(&mut self, size: usize, item: T) {
        self.by_size.entry(size).or_default().push(Idle { item, rounds: 0 });
    }

    /// Takes the smallest item of at least `need` bytes for which `may_be_used` is true. Among equal sizes the last one added comes first, because
    /// its pages are warm. Items more than `WASTE_MAX` times as large as `need` are not taken.
    pub(super) fn take(&mut self, need: usize, may_be_used: impl Fn(&T) -> bool) -> Option<T> {
        for (_, items) in self.by_size.range_mut(need..=need.saturating_mul(WASTE_MAX)) {
            if let Some(at) = items.iter().rposition(|idle| may_be_used(&idle.item)) {
                return Some(items.remove(at).item);
            }
        }
        None
    }

    /// Ends a round. Returns the items that were not taken for more than `rounds_max` rounds.
    pub(super) fn age(&mut self, rounds_max: u32) -> Vec<T> {
        let mut stale = Vec::new();
        self.by_size.retain(|_, items| {
            let old = |idle: &mut Idle<T>| {
                idle.rounds = idle.rounds.saturating_add(1);
                idle.rounds > rounds_max
            };
            stale.extend(items.extract_if(.., old).map(|idle| idle.item));
            !items.is_empty()
        });
        stale
    }

    /// Takes items for which `may_be_taken` is true, until the sum of their sizes is at least `need`. The items that were idle for the most rounds come
    /// first.
    pub(super) fn take_oldest(&mut self, need: u64, may_be_taken: impl Fn(&T) -> bool) -> Vec<T> {
        let all = self.by_size.iter().flat_map(|(&size, items)| items.iter().map(move |idle| (size, idle)));
        let mut candidates: Vec<_> =
            all.filter(|(_, idle)| may_be_taken(&idle.item)).map(|(size, idle)| (idle.rounds, size)).collect();
        candidates.sort_unstable_by(|a, b| b.cmp(a));
        let (mut taken, mut sum) = (Vec::new(), 0);
        for (rounds, size) in candidates {
            if sum >= need {
                break;
            }
            let Some(items) = self.by_size.get_mut(&size) else { continue };
            let found = items.iter().position(|idle| idle.rounds == rounds && may_be_taken(&idle.item));
            if let Some(at) = found {
                taken.push(items.remove(at).item);
                sum += size as u64;
            }
        }
        self.by_size.retain(|_, items| !items.is_empty());
        taken
    }

    /// Takes all items.
    pub(super) fn clear(&mut self) -> Vec<T> {
        let all = std::mem::take(&mut self.by_size);
        all.into_values().flatten().map(|idle| idle.item).collect()
    }

    /// All items.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.by_size.values().flatten().map(|idle| &idle.item)
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
    fn items_in_use_are_skipped_and_the_latest_comes_first() {
        let mut free_list = FreeList::new();
        for item in ["cold", "warm", "busy"] {
            free_list.put(8, item);
        }
        free_list.put(9, "larger");
        let mut take = || free_list.take(8, |item| *item != "busy");
        assert_eq!([take(), take(), take(), take()], [Some("warm"), Some("cold"), Some("larger"), None]);
    }

    #[track_caller]
    fn check_oldest(sizes_by_age: &[&[usize]], need: u64, taken: &[usize]) {
        let mut free_list = FreeList::new();
        for sizes in sizes_by_age {
            assert!(free_list.age(u32::MAX).is_empty());
            sizes.iter().for_each(|&size| free_list.put(size, size));
        }
        // Items of odd sizes are in use.
        assert_eq!(free_list.take_oldest(need, |size| size % 2 == 0), taken, "{need} of {sizes_by_age:?}");
        let left = sizes_by_age.iter().map(|sizes| sizes.len()).sum::<usize>() - taken.len();
        assert_eq!(free_list.iter().count(), left);
    }

    #[test]
    fn no_more_items_are_taken_than_are_needed_and_the_oldest_come_first() {
        check_oldest(&[], 1, &[]);
        check_oldest(&[&[8, 16]], 1, &[16]);
        check_oldest(&[&[8], &[16, 32]], 1, &[8]);
        check_oldest(&[&[8, 8, 8], &[16]], 16, &[8, 8]);
        check_oldest(&[&[8], &[16]], 24, &[8, 16]);
        check_oldest(&[&[7, 8], &[9]], 24, &[8]);
    }

    #[test]
    fn unused_items_are_removed_after_their_rounds() {
        let mut free_list = FreeList::new();
        free_list.put(8, "old");
        assert!(free_list.age(1).is_empty());
        free_list.put(8, "new");
        assert_eq!(free_list.age(1), ["old"]);
        assert_eq!(free_list.age(0), ["new"]);
        assert!(free_list.by_size.is_empty());
    }
}
