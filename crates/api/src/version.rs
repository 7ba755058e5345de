//! Which version does a text name?

use nerite_request::Status;

/// The version in a client's text: `None` for the empty text, which means the highest ready version. It is parsed like C's `strtol`, as by Triton:
/// leading blanks and a sign are allowed, and characters after the digits are ignored.
pub fn parse(text: &str) -> Result<Option<i64>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    let trimmed = text.trim_start();
    let (sign, digits) = match trimmed.strip_prefix(['-', '+']) {
        Some(rest) => (if trimmed.starts_with('-') { "-" } else { "" }, rest),
        None => ("", trimmed),
    };
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let number = format!("{sign}{}", &digits[..end]).parse::<i64>().map_err(|_| {
        Status::invalid(format!(
            "failed to get model version from specified version string '{text}' (details: stol), version should be an \
             integral value > 0"
        ))
    })?;
    if number < 0 {
        return Err(Status::invalid(format!(
            "invalid model version specified '{text}' , version should be an integral value > 0"
        )));
    }
    Ok(Some(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<Option<i64>, &str>) {
        match (parse(text), expected) {
            (Ok(got), Ok(want)) => assert_eq!(got, want),
            (Err(status), Err(beginning)) => assert!(status.message.starts_with(beginning), "{}", status.message),
            (got, want) => panic!("{text:?}: {got:?}, expected {want:?}"),
        }
    }

    #[test]
    fn a_version_reads_as_strtol_reads_it() {
        check("", Ok(None));
        check("3", Ok(Some(3)));
        check(" 3x", Ok(Some(3)));
        check("0", Ok(Some(0)));
        check("x", Err("failed to get model version from specified version string 'x' (details: stol)"));
        check("99999999999999999999", Err("failed to get model version"));
        check("-1", Err("invalid model version specified '-1' ,"));
    }
}
