//! Which item of a list has this name?
//! Clients usually name tensors in the order of the model's configuration. So a lookup first tries the item after the last one that was found. If that fails,
//! a short list is searched item by item, which allocates nothing. A long list has a table, so that looking up all names of a request takes linear time.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};

/// A list of up to this many items is searched without a table.
const FEW: usize = 16;
/// In a list of up to this many items, all pairs are compared. For longer lists it is cheaper to compare a hash of each name.
const PAIRS_MAX: usize = 4;

/// Items of a list that does not change, by name. Their names differ.
pub struct ByName<'i, T> {
    items: &'i [T],
    name: fn(&T) -> &str,
    table: HashMap<&'i str, usize>,
    /// The index at which an item is looked for first.
    next: Cell<usize>,
}

impl<'i, T> ByName<'i, T> {
    /// A table of the items by the names that `name` returns.
    pub fn new(items: &'i [T], name: fn(&T) -> &str) -> ByName<'i, T> {
        let mut table = HashMap::new();
        if items.len() > FEW {
            table.reserve(items.len());
            for (at, item) in items.iter().enumerate() {
                table.entry(name(item)).or_insert(at);
            }
        }
        ByName { items, name, table, next: Cell::new(0) }
    }

    /// The item of that name.
    #[inline]
    pub fn find(&self, name: &str) -> Option<&'i T> {
        self.items.get(self.index_of(name)?)
    }

    /// The index of the item of that name.
    #[inline]
    pub fn index_of(&self, name: &str) -> Option<usize> {
        let next = self.next.get();
        match self.items.get(next) {
            Some(item) if (self.name)(item) == name => {
                self.found(next);
                Some(next)
            }
            _ => self.search(name),
        }
    }

    #[inline(never)]
    fn search(&self, name: &str) -> Option<usize> {
        let at = if self.items.len() <= FEW {
            self.items.iter().position(|item| (self.name)(item) == name)
        } else {
            self.table.get(name).copied()
        }?;
        self.found(at);
        Some(at)
    }

    /// The next item is expected after this one. After the last one, the first is expected again.
    fn found(&self, at: usize) {
        self.next.set(if at + 1 < self.items.len() { at + 1 } else { 0 });
    }
}

/// The index of the first item whose name an earlier item has.
pub fn first_repeated<T>(items: &[T], name: fn(&T) -> &str) -> Option<usize> {
    let is_repeated = |at: usize| items[..at].iter().any(|earlier| name(earlier) == name(&items[at]));
    if items.len() <= PAIRS_MAX {
        return (1..items.len()).find(|&at| is_repeated(at));
    }
    if items.len() <= FEW {
        // A bit for each name. A name whose bit is not set yet is new.
        let mut seen = 0u128;
        return (0..items.len()).find(|&at| {
            let bit = 1u128 << (sum(name(&items[at])) % 128);
            let is_new = seen & bit == 0;
            seen |= bit;
            !is_new && is_repeated(at)
        });
    }
    let mut seen = HashSet::with_capacity(items.len());
    items.iter().position(|item| !seen.insert(name(item)))
}

/// A hash of the name.
fn sum(name: &str) -> u8 {
    name.bytes().fold(0, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte))
}

/// The names of a list that grows. The list and this table are changed together.
#[derive(Clone, Debug, Default)]
pub struct NameTable(Option<HashMap<String, usize>>);

impl NameTable {
    /// The table of an empty list.
    pub const fn new() -> NameTable {
        NameTable(None)
    }

    /// The index of `name` in `items`. [`NameTable::added`] was called for each item.
    pub fn find<T>(&self, items: &[T], of: impl Fn(&T) -> &str, name: &str) -> Option<usize> {
        match &self.0 {
            None => items.iter().position(|item| of(item) == name),
            Some(table) => table.get(name).copied(),
        }
    }

    /// Records the item that was just put at the end of `items`; its name is new.
    pub fn added<T>(&mut self, items: &[T], of: impl Fn(&T) -> &str) {
        if items.len() > FEW {
            let table = self.0.get_or_insert_default();
            for (at, item) in items.iter().enumerate().skip(table.len()) {
                table.insert(of(item).to_owned(), at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(item: &String) -> &str {
        item
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("n{n}")).collect()
    }

    #[test]
    fn few_and_many_are_found_alike() {
        for count in [0, 1, PAIRS_MAX, PAIRS_MAX + 1, FEW, FEW + 1, 1000] {
            let mut items = names(count);
            let by_name = ByName::new(&items, name);
            // In their order, backwards, and each third.
            for at in (0..count).chain((0..count).rev()).chain((0..count).step_by(3)) {
                let found = by_name.find(&items[at]);
                assert!(found.is_some_and(|found| std::ptr::eq(found, &raw const items[at])), "{at} of {count}");
                assert_eq!(by_name.find("m"), None);
            }
            items.extend(names(count.min(1)));
            assert_eq!(first_repeated(&items, name), (count > 0).then_some(count), "{count}");
            assert_eq!(first_repeated(&items[..count], name), None, "{count}");
        }
    }

    #[test]
    fn a_list_that_grows_finds_each_name() {
        let (mut items, mut table): (Vec<String>, _) = (Vec::new(), NameTable::new());
        for (at, one) in names(40).into_iter().enumerate() {
            assert_eq!(table.find(&items, |item| item, &one), None);
            items.push(one);
            table.added(&items, |item| item);
            for (known, item) in items.iter().enumerate() {
                assert_eq!(table.find(&items, |item| item, item), Some(known), "{item} of {}", at + 1);
            }
        }
    }
}
