//! Which known word is nearest to an unknown one?

use std::fmt::Display;

/// The known word nearest to `word`, if it is near enough to be a typing error: at most one edit in three characters, or the same word except for
/// case, underscores or dashes.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A longer word is not a typing error of a known one, and the table of distances is quadratic.
    if word.len() > 64 {
        return None;
    }
    let plain = |s: &str| s.to_ascii_lowercase().replace(['_', '-'], "");
    let wanted = plain(word);
    known
        .map(|candidate| (distance(&wanted, &plain(candidate)), candidate))
        .filter(|(edits, candidate)| *edits <= candidate.len().min(word.len()) / 3)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// The end of an error: `; did you mean 'serve'?`. Empty if no known word is near enough.
pub fn did_you_mean(meant: Option<impl Display>) -> String {
    meant.map_or_else(String::new, |meant| format!("; did you mean '{meant}'?"))
}

/// The Levenshtein distance: the number of characters to insert, delete or replace.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(word: &str, expect: Option<&str>) {
        let known = ["max_batch_size", "name", "input", "output", "TYPE_FP32"];
        assert_eq!(nearest(word, known.into_iter()), expect);
    }

    #[test]
    fn a_typing_error_finds_its_word_and_an_unknown_word_none() {
        check("max_batchsize", Some("max_batch_size"));
        check("MaxBatchSize", Some("max_batch_size"));
        check("inputs", Some("input"));
        check("type_fp32", Some("TYPE_FP32"));
        check("max-batch-size", Some("max_batch_size"));
        check("colour", None);
        check("", None);
    }
}
