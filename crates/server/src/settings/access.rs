//! Which calls did the operator put behind a header?

use nerite_api::{Category, Protocol, Restriction};

use super::SettingsError;
use crate::flags::{Values, bad, sides};

/// The rules of both protocols, in the order given.
pub(super) fn restrictions(values: &Values<'_>) -> Result<Vec<Restriction>, SettingsError> {
    let mut rules = read(values, "http-restricted-api", "api", Protocol::Http)?;
    rules.extend(read(values, "grpc-restricted-protocol", "protocol", Protocol::Grpc)?);
    Ok(rules)
}

fn read(
    values: &Values<'_>,
    flag: &'static str,
    noun: &str,
    protocol: Protocol,
) -> Result<Vec<Restriction>, SettingsError> {
    let mut rules: Vec<Restriction> = Vec::new();
    let groups = values.pairs(flag, ':', "<config name>:<setting>=<value>")?;
    for (names, setting) in groups {
        let (key, value) = sides(setting, '=').ok_or_else(|| {
            let reason = format!("--{flag} option format is '<config name>:<setting>=<value>'. Got {names}:{setting}");
            bad(flag, reason)
        })?;
        let header = match protocol {
            Protocol::Http => key.to_ascii_lowercase(),
            Protocol::Grpc => format!("triton-grpc-protocol-{key}").to_ascii_lowercase(),
        };
        for name in names.split(',') {
            let category = Category::ALL.into_iter().find(|category| category.name() == name);
            let Some(category) = category else {
                return Err(bad(flag, format!("unknown restricted {noun} '{name}' ")).into());
            };
            if rules.iter().any(|rule| rule.category == category) {
                let reason = format!("restricted {noun} '{name}' can not be specified in multiple config groups");
                return Err(bad(flag, reason).into());
            }
            let (header, value) = (header.clone(), value.to_owned());
            rules.push(Restriction { protocol, category, header, value });
        }
    }
    Ok(rules)
}
