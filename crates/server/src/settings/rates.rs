//! Which resources do instances share?

use crate::flags::{Values, bad};

use super::SettingsError;

const RESOURCE: &str = "rate-limit-resource";

/// A resource: its name, the device or none for all, and how much there is.
pub type RateResource = (String, Option<u32>, u32);

/// The resources that the operator limits; `None` without a rate limiter.
pub(super) fn rates(values: &Values<'_>) -> Result<Option<Vec<RateResource>>, SettingsError> {
    let resources: Vec<_> = values.all(RESOURCE).map(resource).collect::<Result<_, _>>()?;
    match values.text("rate-limit").unwrap_or("off") {
        "off" => Ok(None),
        "execution_count" => Ok(Some(resources)),
        other => {
            let reason = format!("invalid argument for --rate-limit: it is off or execution_count. Got {other}");
            Err(bad("rate-limit", reason).into())
        }
    }
}

/// `name:count` or `name:count:device`.
fn resource(text: &str) -> Result<RateResource, SettingsError> {
    let number = |part: &str| {
        part.trim().parse().map_err(|_| SettingsError::from(bad(RESOURCE, format!("Invalid option value. Got {part}"))))
    };
    let parts: Vec<&str> = text.split(':').collect();
    match parts[..] {
        [name, count] => Ok((name.to_owned(), None, number(count)?)),
        [name, count, device] => Ok((name.to_owned(), Some(number(device)?), number(count)?)),
        _ => {
            let format = "'<resource_name>:<count>:<device>' or '<resource_name>:<count>'";
            Err(bad(RESOURCE, format!("--{RESOURCE} option format is {format}. Got {text}")).into())
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::flags::parse;

    type Expected = (&'static str, Option<u32>, u32);

    #[track_caller]
    fn check(line: &str, expect: Result<Option<&[Expected]>, &str>) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let found = rates(&Values(&parse(&words).unwrap())).map_err(|error| error.to_string());
        let owned = |list: &[Expected]| {
            list.iter().map(|(name, device, count)| ((*name).to_owned(), *device, *count)).collect()
        };
        match expect {
            Ok(list) => assert_eq!(found, Ok(list.map(owned)), "{line}"),
            Err(text) => assert!(found.as_ref().is_err_and(|found| found.contains(text)), "{line}: {found:?}"),
        }
    }

    #[test]
    fn resources_are_looked_at_if_the_operator_says_so() {
        check("", Ok(None));
        check("--rate-limit=off --rate-limit-resource=R:1", Ok(None));
        check("--rate-limit=execution_count", Ok(Some(&[])));
        check(
            "--rate-limit=execution_count --rate-limit-resource=R:10 --rate-limit-resource=S:3:1",
            Ok(Some(&[("R", None, 10), ("S", Some(1), 3)])),
        );
        check("--rate-limit=bogus", Err("invalid argument for --rate-limit: it is off or execution_count. Got bogus"));
        check("--rate-limit-resource=bogus", Err("option format is '<resource_name>:<count>:<device>' or"));
        check("--rate-limit-resource=a:1:2:3", Err("Got a:1:2:3"));
        check("--rate-limit-resource=a:b", Err("Got b"));
        check("--rate-limit-resource=a:-1", Err("Got -1"));
    }
}
