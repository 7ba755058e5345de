//! Which web sites may use the server, and under which names?

use nerite_api::{allowed_host, allowed_origin};

use super::SettingsError;
use crate::flags::{Values, bad};

const HOSTS: &str = "http-allowed-hosts";
const ORIGINS: &str = "http-allowed-origins";

/// What the operator allows of what browsers send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Names of the server in `Host`.
    pub hosts: Vec<String>,
    /// Web sites, as browsers write their origins.
    pub origins: Vec<String>,
}

/// Reads the flags.
pub(super) fn allowed(values: &Values<'_>) -> Result<Allowed, SettingsError> {
    let hosts = values.all(HOSTS).map(|text| allowed_host(text).map_err(|reason| bad(HOSTS, reason)));
    let origins = values.all(ORIGINS).map(|text| allowed_origin(text).map_err(|reason| bad(ORIGINS, reason)));
    Ok(Allowed { hosts: hosts.collect::<Result<_, _>>()?, origins: origins.collect::<Result<_, _>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::parse;

    #[track_caller]
    fn check(line: &[&str], expect: Result<(&[&str], &[&str]), &str>) {
        let words: Vec<String> = line.iter().map(|&word| word.to_owned()).collect();
        let given = parse(&words).expect("a legal line");
        match (allowed(&Values(&given)), expect) {
            (Ok(found), Ok((hosts, origins))) => assert_eq!(
                (found.hosts, found.origins),
                (hosts.iter().map(ToString::to_string).collect(), origins.iter().map(ToString::to_string).collect())
            ),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (found, expect) => panic!("{found:?}, expected {expect:?}"),
        }
    }

    #[test]
    fn each_flag_is_given_several_times_and_a_malformed_value_is_refused() {
        check(&[], Ok((&[], &[])));
        check(
            &[
                "--http-allowed-hosts=a.example",
                "--http-allowed-hosts=*",
                "--http-allowed-origins=https://B.example:443",
            ],
            Ok((&["a.example", "*"], &["https://b.example"])),
        );
        check(&["--http-allowed-hosts=http://a"], Err("Bad option: \"--http-allowed-hosts\".\na host is a name"));
        check(&["--http-allowed-origins=a.example"], Err("Bad option: \"--http-allowed-origins\".\nan origin is"));
        check(&["--http-allowed-origins=https://a,https://b"], Err("Got https://a,https://b"));
    }
}
