//! Which clients share their sequences?

use nerite_request::SequenceScope;

use super::regions::bad_choice;
use crate::flags::{BadValue, Values};

pub(super) fn scope(values: &Values<'_>) -> Result<SequenceScope, BadValue> {
    Ok(match values.text("sequence-scope") {
        None | Some("user") => SequenceScope::User,
        Some("peer") => SequenceScope::Peer,
        Some("all") => SequenceScope::All,
        Some(other) => return Err(bad_choice("sequence-scope", "'user', 'peer' or 'all'", other)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags;

    #[track_caller]
    fn check(line: &[&str], expect: Result<SequenceScope, &str>) {
        let words: Vec<String> = line.iter().map(|&word| word.to_owned()).collect();
        let given = flags::parse(&words).expect("a known flag");
        let found = scope(&Values(&given)).map_err(|refused| refused.to_string());
        match (&found, expect) {
            (Err(found), Err(expect)) => assert!(found.contains(expect), "{found}"),
            (found, expect) => assert_eq!(found.as_ref().ok(), expect.ok().as_ref(), "{line:?}: {found:?}"),
        }
    }

    #[test]
    fn each_user_has_its_own_unless_the_operator_says_otherwise() {
        check(&[], Ok(SequenceScope::User));
        check(&["--sequence-scope=user"], Ok(SequenceScope::User));
        check(&["--sequence-scope=peer"], Ok(SequenceScope::Peer));
        check(&["--sequence-scope=all"], Ok(SequenceScope::All));
        check(&["--sequence-scope=own"], Err("'user', 'peer' or 'all'. Got own"));
    }
}
