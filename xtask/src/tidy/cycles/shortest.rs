//! Which cycles does a graph have?

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Edges from one module to another.
type Edges<'a> = BTreeSet<(&'a str, &'a str)>;

/// Cycles with an edge that `counts`, the shortest first, each from its first name on. They share no edge, and each remaining cycle shares an edge
/// with one of them.
pub fn cycles(mut edges: Edges<'_>, counts: impl Fn((&str, &str)) -> bool) -> Vec<Vec<&str>> {
    let mut cycles = Vec::new();
    while let Some(cycle) = shortest(&edges, &counts) {
        for (from, to) in cycle.iter().zip(cycle.iter().cycle().skip(1)) {
            edges.remove(&(*from, *to));
        }
        cycles.push(cycle);
    }
    cycles
}

fn shortest<'a>(edges: &Edges<'a>, counts: impl Fn((&str, &str)) -> bool) -> Option<Vec<&'a str>> {
    let ways = edges.iter().filter(|edge| counts(**edge)).filter_map(|(from, to)| way(edges, to, from));
    let mut cycle = ways.min_by_key(Vec::len)?;
    let first = cycle.iter().enumerate().min_by_key(|(_, name)| **name).map_or(0, |(index, _)| index);
    cycle.rotate_left(first);
    Some(cycle)
}

/// The shortest path from `start` to `end`, both included.
fn way<'a>(edges: &Edges<'a>, start: &'a str, end: &str) -> Option<Vec<&'a str>> {
    let mut previous: BTreeMap<&str, &str> = BTreeMap::new();
    let mut waiting = VecDeque::from([start]);
    while let Some(at) = waiting.pop_front() {
        if at == end {
            let mut way = vec![at];
            while let Some(before) = previous.get(way[way.len() - 1]) {
                way.push(before);
            }
            way.reverse();
            return Some(way);
        }
        for (_, next) in edges.range((at, "")..).take_while(|(from, _)| *from == at) {
            if *next != start && !previous.contains_key(next) {
                previous.insert(next, at);
                waiting.push_back(next);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    #[track_caller]
    fn check(edges: &[(&str, &str)], expect: &[&[&str]]) {
        assert_eq!(super::cycles(edges.iter().copied().collect(), |(from, to)| from != "in" && to != "in"), expect);
    }

    #[test]
    fn a_graph_in_one_direction_has_none() {
        check(&[], &[]);
        check(&[("a", "b"), ("b", "c"), ("a", "c")], &[]);
    }

    #[test]
    fn a_cycle_is_reported_once_from_its_first_name_on() {
        check(&[("b", "c"), ("c", "a"), ("a", "b"), ("a", "x"), ("y", "a")], &[&["a", "b", "c"]]);
        check(&[("b", "a"), ("a", "b"), ("c", "d"), ("d", "c")], &[&["a", "b"], &["c", "d"]]);
    }

    #[test]
    fn a_cycle_of_edges_that_do_not_count_is_none() {
        check(&[("in", "a"), ("a", "in")], &[]);
        check(&[("in", "a"), ("a", "b"), ("b", "in"), ("a", "in")], &[&["a", "b", "in"]]);
    }

    #[test]
    fn the_shortest_cycle_comes_first_and_others_are_reported_too() {
        check(&[("a", "b"), ("b", "c"), ("c", "a"), ("c", "b")], &[&["b", "c"]]);
        check(&[("a", "b"), ("b", "c"), ("c", "a"), ("b", "a")], &[&["a", "b"]]);
        check(&[("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")], &[&["a", "b"], &["b", "c"]]);
    }
}
