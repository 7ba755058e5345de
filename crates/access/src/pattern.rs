//! Which models does a token allow?

/// A model's name, or with `*` at its end the beginning of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    text: String,
    is_beginning: bool,
}

impl Pattern {
    /// Reads a pattern. Err: what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Pattern, String> {
        let (text, is_beginning) = match text.strip_suffix('*') {
            Some(beginning) => (beginning, true),
            None => (text, false),
        };
        if text.contains('*') {
            return Err(format!("'{text}' has a '*' that is not its end"));
        }
        if text.is_empty() && !is_beginning {
            return Err("a model has no empty name; '*' means all".to_owned());
        }
        Ok(Pattern { text: text.to_owned(), is_beginning })
    }

    /// Whether it means this model.
    pub(crate) fn is_match(&self, model: &str) -> bool {
        if self.is_beginning { model.starts_with(&self.text) } else { model == self.text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, model: &str, matches: bool) {
        assert_eq!(Pattern::parse(pattern).expect("a pattern").is_match(model), matches, "{pattern} {model}");
    }

    #[test]
    fn a_pattern_is_a_name_or_its_beginning() {
        check("digits", "digits", true);
        check("digits", "digits2", false);
        check("digits*", "digits2", true);
        check("digits*", "digits", true);
        check("digits*", "Digits", false);
        check("*", "any", true);
        for wrong in ["", "a*b", "**"] {
            assert!(Pattern::parse(wrong).is_err(), "{wrong}");
        }
    }
}
