//! Who may connect to the Unix sockets of HTTP and gRPC?

use nerite_listen::OWNER_ONLY;

use crate::flags::{BadValue, Values};

/// Read, write and execute, for the owner, the group and others.
const PERMISSIONS: u32 = 0o777;

/// The mode that a flag gives a socket's file; the server's user alone if it is not given.
pub(super) fn socket_mode(values: &Values<'_>, flag: &'static str) -> Result<u32, BadValue> {
    let Some(text) = values.text(flag) else { return Ok(OWNER_ONLY) };
    read_mode(text.trim()).map_err(|nearest| {
        let reason = format!(
            "'{text}' is no mode of a socket that its own user can connect to; write it in octal, as --{flag}={nearest:04o}"
        );
        BadValue { flag, reason }
    })
}

/// A mode in octal: `660`, `0660`, `0o660`. Err: the mode that was probably meant.
fn read_mode(text: &str) -> Result<u32, u32> {
    let digits = text.strip_prefix("0o").or_else(|| text.strip_prefix("0O")).unwrap_or(text);
    let is_octal = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    match u32::from_str_radix(digits, 8).ok().filter(|_| is_octal) {
        Some(mode) if mode <= PERMISSIONS && mode & OWNER_ONLY == OWNER_ONLY => Ok(mode),
        // Many programs print modes in decimal: 432 is 0660.
        _ => Err(from_number(text).or_else(|| from_letters(text)).unwrap_or(OWNER_ONLY)),
    }
}

/// A mode in decimal or hexadecimal.
fn from_number(text: &str) -> Option<u32> {
    let mode = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    mode.ok().filter(|mode| *mode <= PERMISSIONS && mode & OWNER_ONLY == OWNER_ONLY)
}

/// A mode as `ls` shows it, such as `srw-rw----`.
fn from_letters(text: &str) -> Option<u32> {
    let letters = text.strip_prefix(['s', '-']).filter(|rest| rest.len() == 9).unwrap_or(text);
    if letters.len() != 9 {
        return None;
    }
    letters
        .chars()
        .zip("rwxrwxrwx".chars())
        .try_fold(0, |mode, (found, letter)| match found {
            '-' => Some(mode << 1),
            found if found == letter => Some(mode << 1 | 1),
            _ => None,
        })
        .filter(|mode| mode & OWNER_ONLY == OWNER_ONLY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Result<u32, u32>) {
        let found = read_mode(text);
        assert_eq!(found, expect, "{text}: {found:?}");
    }

    #[test]
    fn a_mode_is_octal_with_or_without_a_prefix() {
        for text in ["0660", "660", "0o660", "0O660", "00660"] {
            check(text, Ok(0o660));
        }
        check("600", Ok(0o600));
        check("0666", Ok(0o666));
        check("777", Ok(0o777));
    }

    #[test]
    fn what_is_no_mode_comes_with_what_was_probably_meant() {
        check("384", Err(0o600));
        check("432", Err(0o660));
        check("438", Err(0o666));
        check("0x1b0", Err(0o660));
        check("rw-rw----", Err(0o660));
        check("srw-rw-rw-", Err(0o666));
        for text in [
            "",
            "0",
            "60",
            "066",
            "0060",
            "1777",
            "06600",
            "66o",
            "-600",
            "+600",
            "u=rw",
            "rw",
            "0o",
            "99999999999",
            "rwxr",
        ] {
            check(text, Err(0o600));
        }
    }

    #[test]
    fn a_wrong_mode_is_refused_with_the_nearest_right_spelling() {
        let words = ["--http-socket-mode=432".to_owned()];
        let given = crate::flags::parse(&words).expect("a known flag");
        let refused = socket_mode(&Values(&given), "http-socket-mode").expect_err("a decimal number");
        assert!(refused.reason.ends_with("write it in octal, as --http-socket-mode=0660"), "{refused}");
        assert_eq!(socket_mode(&Values(&given), "grpc-socket-mode"), Ok(0o600));
    }
}
