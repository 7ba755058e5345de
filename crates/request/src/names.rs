//! Which item of a list has this name?
//!
//! Few items are compared one by one, which is fastest and allocates nothing. Many are found through a table, so that
//! looking up all names of a request takes time in proportion to their number, not to its square.

use std::collections::{HashMap, HashSet};

/// Up to this many items are compared one by one.
const FEW: usize = 16;

/// Items of a list that does not change, by name. Of items with the same name the first is found.
pub struct ByName<'i, T> {
    items: &'i [T],
    name: fn(&T) -> &str,
    table: HashMap<&'i str, usize>,
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
        ByName { items, name, table }
    }

    /// The item of that name.
    pub fn find(&self, name: &str) -> Option<&'i T> {
        if self.items.len() <= FEW {
            return self.items.iter().find(|item| (self.name)(item) == name);
        }
        self.table.get(name).map(|&at| &self.items[at])
    }
}

/// The index of the first item whose name an earlier item has.
pub fn first_repeated<T>(items: &[T], name: fn(&T) -> &str) -> Option<usize> {
    if items.len() <= FEW {
        return (1..items.len()).find(|&at| items[..at].iter().any(|earlier| name(earlier) == name(&items[at])));
    }
    let mut seen = HashSet::with_capacity(items.len());
    items.iter().position(|item| !seen.insert(name(item)))
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
        for count in [0, 1, FEW, FEW + 1, 1000] {
            let mut items = names(count);
            items.extend(names(count.min(1)));
            let by_name = ByName::new(&items, name);
            for (at, item) in items.iter().take(count).enumerate() {
                assert!(
                    by_name.find(item).is_some_and(|found| std::ptr::eq(found, &raw const items[at])),
                    "{item} of {count}"
                );
            }
            assert_eq!(by_name.find("m"), None);
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
