//! Which objects may a client register, and which regions can it use?

use nerite_api::{RegionRules, ShmScope, ShmTrust};

use crate::flags::{BadValue, Values};

pub(super) fn rules(values: &Values<'_>) -> Result<RegionRules, BadValue> {
    let trust = match values.text("shm-trust") {
        None | Some("peer") => ShmTrust::Peer,
        Some("any") => ShmTrust::Any,
        Some(other) => return Err(bad_choice("shm-trust", "'peer' or 'any'", other)),
    };
    let scope = match values.text("shm-scope") {
        None | Some("own") => ShmScope::Own,
        Some("all") => ShmScope::All,
        Some(other) => return Err(bad_choice("shm-scope", "'own' or 'all'", other)),
    };
    let key_prefixes: Vec<String> = values.all("shm-key-prefix").map(str::to_owned).collect();
    if key_prefixes.iter().any(|prefix| prefix.trim_start_matches('/').is_empty()) {
        let reason = "an empty prefix would open every object; for that there is --shm-trust=any".to_owned();
        return Err(BadValue { flag: "shm-key-prefix", reason });
    }
    Ok(RegionRules { trust, key_prefixes, scope })
}

pub(super) fn bad_choice(flag: &'static str, words: &str, got: &str) -> BadValue {
    BadValue { flag, reason: format!("--{flag} is {words}. Got {got}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags;

    fn read(line: &[&str]) -> Result<RegionRules, BadValue> {
        let words: Vec<String> = line.iter().map(|&word| word.to_owned()).collect();
        let given = flags::parse(&words).expect("known flags");
        rules(&Values(&given))
    }

    #[test]
    fn clients_reach_their_own_unless_the_operator_says_otherwise() {
        assert_eq!(read(&[]), Ok(RegionRules::default()));
        let line = ["--shm-trust=any", "--shm-scope=all", "--shm-key-prefix=/cam", "--shm-key-prefix=mic"];
        let key_prefixes = vec!["/cam".to_owned(), "mic".to_owned()];
        assert_eq!(read(&line), Ok(RegionRules { trust: ShmTrust::Any, key_prefixes, scope: ShmScope::All }));
    }

    #[test]
    fn a_wrong_word_is_refused_with_the_right_ones() {
        let refused = |line: &str| read(&[line]).expect_err("no such word").to_string();
        assert!(refused("--shm-trust=all").contains("'peer' or 'any'"));
        assert!(refused("--shm-scope=any").contains("'own' or 'all'"));
        assert!(refused("--shm-key-prefix=/").contains("--shm-trust=any"));
    }
}
