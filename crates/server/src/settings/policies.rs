//! On which cores may instances run?

use nerite_engine::{HOST_POLICY_SETTINGS, HostPolicies};

use super::{SettingsError, contradiction};
use crate::flags::{Values, bad, sides};

const FLAG: &str = "host-policy";

/// The settings by the name of their policy. If a setting is given twice, the last value counts.
pub(super) fn policies(values: &Values<'_>) -> Result<HostPolicies, SettingsError> {
    let mut policies = HostPolicies::default();
    for value in values.all(FLAG) {
        let parts = sides(value, ',').and_then(|(policy, setting)| Some((policy, sides(setting, '=')?)));
        let Some((policy, (setting, content))) = parts else {
            let text = format!("--{FLAG} option format is '<policy name>,<setting>=<value>'. Got {value}");
            return Err(bad(FLAG, text).into());
        };
        if !HOST_POLICY_SETTINGS.contains(&setting) {
            let text = format!(
                "Failed to build Triton option:\nerror: setting host policy: Unsupported - Unsupported host policy setting \
                 '{setting}' is specified, supported settings are 'numa-node', 'cpu-cores'"
            );
            return Err(contradiction(text, &[FLAG]));
        }
        policies.0.entry(policy.to_owned()).or_default().insert(setting.to_owned(), content.to_owned());
    }
    Ok(policies)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::flags::parse;

    #[track_caller]
    fn check(line: &str, expect: Result<&[(&str, &str, &str)], &str>) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let found = policies(&Values(&parse(&words).unwrap())).map_err(|error| error.to_string());
        match expect {
            Ok(list) => {
                let found = found.unwrap().0;
                let lines = found.iter().flat_map(|(policy, settings)| {
                    settings.iter().map(move |(setting, value)| (policy.as_str(), setting.as_str(), value.as_str()))
                });
                assert_eq!(lines.collect::<Vec<_>>(), list, "{line}");
            }
            Err(text) => assert!(found.as_ref().is_err_and(|found| found.contains(text)), "{line}: {found:?}"),
        }
    }

    #[test]
    fn settings_are_kept_by_policy() {
        check("", Ok(&[]));
        check(
            "--host-policy=p,cpu-cores=0-1 --host-policy=q,numa-node=1 --host-policy=p,cpu-cores=2-3",
            Ok(&[("p", "cpu-cores", "2-3"), ("q", "numa-node", "1")]),
        );
        check("--host-policy=p", Err("option format is '<policy name>,<setting>=<value>'. Got p"));
        check("--host-policy=p,numa-node", Err("Got p,numa-node"));
        check("--host-policy=p,bogus=0", Err("Unsupported host policy setting 'bogus' is specified"));
    }
}
