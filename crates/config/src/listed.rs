//! How does an error name the first of many things?

use std::fmt::Display;

/// The first `max` of these, and whether there are more: `a, b and more`.
pub fn listed(all: &[impl Display], max: usize) -> String {
    let first: Vec<String> = all.iter().take(max).map(ToString::to_string).collect();
    first.join(", ") + if all.len() > max { " and more" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_are_named() {
        assert_eq!(listed(&[0; 0], 2), "");
        assert_eq!(listed(&["a", "b"], 2), "a, b");
        assert_eq!(listed(&[1, 2, 3], 2), "1, 2 and more");
    }
}
