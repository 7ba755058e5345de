//! Which settings are in the environment?
//!
//! `NERITE_HTTP_PORT` is `--http-port`. Flags that may be given several times have one value per line. Other variables with this prefix are ignored,
//! because other programs set them (Kubernetes sets NERITE_SERVICE_HOST for a service called nerite).

use nerite_config::nearest;

use crate::flags::{FLAGS, Given, Origin, Takes, bool_of};

const PREFIX: &str = "NERITE_";
/// The value of a flag that takes no value, if a variable turns it off.
pub(super) const OFF: &str = "false";
/// The prefixes of the addresses that Kubernetes puts into `NERITE_HTTP_PORT` for a service called nerite-http.
const ADDRESSES: [&str; 3] = ["tcp://", "udp://", "sctp://"];
/// Known variables that are not settings of a server.
const OTHERS: [&str; 5] =
    ["NERITE_BIN", "NERITE_EXAMPLES", "NERITE_SERVER_UID", "NERITE_SERVICE_PORT", "NERITE_SERVICE_PORT_HTTP"];

/// The flags that variables set, and hints about variables that are probably misspelt.
pub(super) fn read(variables: impl Iterator<Item = (String, String)>) -> Result<(Vec<Given>, Vec<String>), String> {
    let mut variables: Vec<_> = variables.filter(|(name, _)| name.starts_with(PREFIX)).collect();
    variables.sort();
    let (mut given, mut notes) = (Vec::new(), Vec::new());
    for (name, text) in variables {
        let Some(flag) = FLAGS.iter().find(|flag| flag.name != "help" && variable_of(flag.name) == name) else {
            notes.extend(typo_hint(&name));
            continue;
        };
        // In a shell or a compose file, an empty variable means "not given".
        if text.is_empty() || is_address_of_service(&text) {
            continue;
        }
        let origin = Origin::Variable(name.clone());
        let values: Vec<&str> = match flag.takes {
            Takes::Value(_) if flag.repeats() => text.lines().filter(|line| !line.is_empty()).collect(),
            Takes::Value(_) => vec![&text],
            Takes::Nothing => match bool_of(&text) {
                Some(true) => vec![""],
                // It overrides the file, and is removed afterwards.
                Some(false) => vec![OFF],
                None => return Err(format!("{name}: {}: 'true' or 'false', and not '{text}'", flag.name)),
            },
        };
        given.extend(values.into_iter().map(|value| Given { flag, value: value.to_owned(), origin: origin.clone() }));
    }
    Ok((given, notes))
}

/// Whether Kubernetes made the variable, for a service whose name begins with nerite.
pub fn is_address_of_service(text: &str) -> bool {
    ADDRESSES.iter().any(|begin| text.starts_with(begin))
}

/// The variable of a flag.
fn variable_of(flag: &str) -> String {
    format!("{PREFIX}{}", flag.replace('-', "_").to_ascii_uppercase())
}

/// A hint about a variable that is not a setting, if its name is near to one.
fn typo_hint(name: &str) -> Option<String> {
    if OTHERS.contains(&name) {
        return None;
    }
    let near = nearest(name.strip_prefix(PREFIX)?, FLAGS.iter().map(|flag| flag.name))?;
    Some(format!("the variable {name} is no setting; did you mean {}?", variable_of(near)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(variables: &[(&str, &str)], expect: &[(&str, &str)], expect_notes: &[&str]) {
        let variables = variables.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        let (given, notes) = read(variables).expect("they can be read");
        let found: Vec<_> = given.iter().map(|one| (one.flag.name, one.value.as_str())).collect();
        assert_eq!(found, expect);
        assert_eq!(notes, expect_notes);
    }

    #[test]
    fn a_variable_is_a_flag_in_capitals() {
        check(&[("NERITE_HTTP_PORT", "9000"), ("HTTP_PORT", "1")], &[("http-port", "9000")], &[]);
        check(&[("NERITE_HTTP_PORT", "")], &[], &[]);
        let two = [("load-model", "a"), ("load-model", "b")];
        check(&[("NERITE_LOAD_MODEL", "a\nb\n")], &two, &[]);
        check(&[("NERITE_DISABLE_AUTO_COMPLETE_CONFIG", "on")], &[("disable-auto-complete-config", "")], &[]);
        check(&[("NERITE_DISABLE_AUTO_COMPLETE_CONFIG", "0")], &[("disable-auto-complete-config", OFF)], &[]);
        let wrong = [("NERITE_DISABLE_AUTO_COMPLETE_CONFIG".to_owned(), "perhaps".to_owned())];
        assert!(read(wrong.into_iter()).is_err_and(|text| text.contains("and not 'perhaps'")));
    }

    #[test]
    fn variables_of_others_are_passed_over_and_slips_are_reported() {
        let ours = ["NERITE_BIN", "NERITE_EXAMPLES", "NERITE_SERVER_UID"];
        let of_kubernetes = [
            "NERITE_SERVICE_HOST",
            "NERITE_SERVICE_PORT",
            "NERITE_SERVICE_PORT_HTTP",
            "NERITE_PORT",
            "NERITE_PORT_8000_TCP",
            "NERITE_PORT_8000_TCP_ADDR",
        ];
        for name in ours.into_iter().chain(of_kubernetes) {
            check(&[(name, "x")], &[], &[]);
        }
        check(&[("NERITE_HTTP_PORT", "tcp://10.0.0.1:8000")], &[], &[]);
        let hint = "the variable NERITE_HTTP_PROT is no setting; did you mean NERITE_HTTP_PORT?";
        check(&[("NERITE_HTTP_PROT", "1")], &[], &[hint]);
    }
}
