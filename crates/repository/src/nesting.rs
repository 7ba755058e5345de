//! Does an ensemble need itself, or is it in too long a row of ensembles that are each made of the next?
//!
//! Each ensemble of a row calls the next one on the stack of the thread that runs the request.

use std::collections::{BTreeMap, BTreeSet};

use crate::limits::ENSEMBLES_NESTED_MAX;
use crate::phrase;

/// The parts of each model, by its name. Models without parts may be missing.
pub(crate) type Needs<'n> = BTreeMap<&'n str, Vec<&'n str>>;

/// Refuses an ensemble that is made of `needs`, if it needs itself or makes a row too long. `others` has the parts of the other models, which are not
/// in a circle without `ensemble`.
pub(crate) fn check_nesting(ensemble: &str, needs: &[String], others: &Needs<'_>) -> Result<(), String> {
    if needs.is_empty() {
        return Ok(());
    }
    let mut below: Needs<'_> = others.clone();
    below.insert(ensemble, needs.iter().map(String::as_str).collect());
    if let Some(last) = last_before(ensemble, &below) {
        return Err(phrase::circular(ensemble, last));
    }
    let mut above = Needs::new();
    for (&model, parts) in &below {
        for &part in parts {
            above.entry(part).or_default().push(model);
        }
    }
    // The ensemble is in both rows, and counts once. The last model of the row below is not an ensemble, and does not count.
    let row = |needs: &Needs<'_>| longest(ensemble, needs, &mut BTreeMap::new());
    let count = row(&below) + row(&above) - 2;
    if count > ENSEMBLES_NESTED_MAX {
        return Err(phrase::nested_too_deep(ensemble, count, ENSEMBLES_NESTED_MAX));
    }
    Ok(())
}

/// The last model of a circle: `ensemble` needs it, directly or indirectly, and it needs `ensemble`.
fn last_before<'n>(ensemble: &str, needs: &Needs<'n>) -> Option<&'n str> {
    let (mut open, mut seen) = (vec![ensemble], BTreeSet::new());
    while let Some(model) = open.pop() {
        let Some((&model, parts)) = needs.get_key_value(model) else { continue };
        for &part in parts {
            if part == ensemble {
                return Some(model);
            }
            if seen.insert(part) {
                open.push(part);
            }
        }
    }
    None
}

/// The number of models in the longest row that begins with `model`. The recursion is as deep as that row.
fn longest<'n>(model: &str, next: &Needs<'n>, known: &mut BTreeMap<&'n str, usize>) -> usize {
    let mut rest = 0;
    for &one in next.get(model).map_or(&[][..], Vec::as_slice) {
        let count = match known.get(one) {
            Some(&count) => count,
            None => longest(one, next, known),
        };
        known.insert(one, count);
        rest = rest.max(count);
    }
    rest + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `others` as `a=b,c d=e`.
    #[track_caller]
    fn check(ensemble: &str, needs: &str, others: &str, expect: Result<(), &str>) {
        let others: Needs<'_> = others
            .split_whitespace()
            .filter_map(|one| one.split_once('='))
            .map(|(model, parts)| (model, parts.split(',').collect()))
            .collect();
        let needs: Vec<String> = needs.split_whitespace().map(str::to_owned).collect();
        assert_eq!(check_nesting(ensemble, &needs, &others), expect.map_err(str::to_owned));
    }

    #[test]
    fn an_ensemble_that_needs_itself_is_refused() {
        check("e", "a b", "", Ok(()));
        check("e", "a b", "a=c,d b=c", Ok(()));
        check("e", "", "a=e", Ok(()));
        // What it was made of before does not count.
        check("e", "a", "e=b b=c c=d", Ok(()));
        check("e", "e", "", Err("circular dependency between ensembles: e -> ... -> e -> e"));
        check("e", "a", "e=b a=e", Err("circular dependency between ensembles: e -> ... -> a -> e"));
        check("e", "x a", "a=b b=c c=x,e", Err("circular dependency between ensembles: e -> ... -> c -> e"));
    }

    #[test]
    fn a_row_of_ensembles_has_a_bound_wherever_it_grows() {
        let row = |from: usize, to: usize| (from..to).map(|n| format!("m{n}=m{} ", n + 1)).collect::<Vec<_>>().concat();
        let max = ENSEMBLES_NESTED_MAX;
        let refused = format!(
            "ensemble 'e' would stand in a row of {} ensembles, each made of the next; at most {max} may",
            max + 1
        );
        // The new ensemble is at the top, at the bottom and in the middle of the row.
        check("e", "m1", &row(1, max), Ok(()));
        check("e", "m1", &row(1, max + 1), Err(&refused));
        check("e", "p", &row(1, max).replace(&format!("m{max} "), "e "), Ok(()));
        check("e", "p", &row(1, max + 1).replace(&format!("m{} ", max + 1), "e "), Err(&refused));
        let half = max / 2;
        let around = |count: usize| row(1, half).replace(&format!("m{half} "), "e ") + &row(100, 100 + count - half);
        check("e", "m100", &around(max), Ok(()));
        check("e", "m100", &around(max + 1), Err(&refused));
    }

    #[test]
    fn many_ways_to_the_same_model_take_no_longer() {
        let others = (0..30).map(|n| format!("a{n}=a{m},b{m} b{n}=a{m},b{m} ", m = n + 1)).collect::<Vec<_>>().concat();
        check("e", "a0 b0", &others, Ok(()));
    }
}
