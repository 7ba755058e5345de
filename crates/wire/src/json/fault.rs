//! Which errors can reading a JSON text have?

use std::fmt::Display;

use nerite_request::Status;

/// A text that is not valid JSON: RapidJSON's error text, and the offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to parse the request JSON buffer: {reason} at {offset}")]
pub struct Malformed {
    /// RapidJSON's error text.
    pub reason: &'static str,
    /// Offset of the byte at fault.
    pub offset: usize,
}

impl From<Malformed> for Status {
    /// Triton reports malformed JSON as an internal error.
    fn from(malformed: Malformed) -> Status {
        Status::internal(malformed.to_string())
    }
}

/// Why a value could not be read.
#[derive(Debug)]
pub enum Fault {
    /// The text is not valid JSON. Reading cannot continue.
    Malformed(Malformed),
    /// The JSON is valid, but the value is not. The reader can continue after it.
    Refused(Status),
}

impl From<Malformed> for Fault {
    fn from(malformed: Malformed) -> Fault {
        Fault::Malformed(malformed)
    }
}

impl From<Fault> for Status {
    fn from(fault: Fault) -> Status {
        match fault {
            Fault::Malformed(malformed) => malformed.into(),
            Fault::Refused(status) => status,
        }
    }
}

impl From<Status> for Fault {
    fn from(status: Status) -> Fault {
        Fault::Refused(status)
    }
}

/// The same error with `before` in front of its text.
pub fn prefixed(before: &str, status: Status) -> Status {
    Status::new(status.code, format!("{before}{}", status.message))
}

/// Completes an error about a wrong type: `; {what} must be` and the type. Triton's text names neither. Other errors are returned as they are.
pub fn explained(status: Status, what: impl Display) -> Status {
    let wanted = mismatch::WANTED.iter().find(|(sentence, _)| status.message.ends_with(sentence));
    match wanted {
        Some((_, wanted)) => must_be(status, what, wanted),
        None => status,
    }
}

/// As [`explained`], with a more precise type than the one for Triton's text.
pub fn explained_as(status: Status, what: impl Display, wanted: &str) -> Status {
    if mismatch::WANTED.iter().any(|(sentence, _)| status.message.ends_with(sentence)) {
        return must_be(status, what, wanted);
    }
    status
}

fn must_be(status: Status, what: impl Display, wanted: &str) -> Status {
    Status::new(status.code, format!("{}; {what} must be {wanted}", status.message))
}

/// RapidJSON's error texts.
pub mod reason {
    pub const DOCUMENT_EMPTY: &str = "The document is empty.";
    pub const ROOT_NOT_SINGULAR: &str = "The document root must not be followed by other values.";
    pub const VALUE_INVALID: &str = "Invalid value.";
    pub const OBJECT_MISS_NAME: &str = "Missing a name for object member.";
    pub const OBJECT_MISS_COLON: &str = "Missing a colon after a name of object member.";
    pub const OBJECT_MISS_COMMA: &str = "Missing a comma or '}' after an object member.";
    pub const ARRAY_MISS_COMMA: &str = "Missing a comma or ']' after an array element.";
    pub const STRING_HEX: &str = "Incorrect hex digit after \\u escape in string.";
    pub const STRING_SURROGATE: &str = "The surrogate pair in string is invalid.";
    pub const STRING_ESCAPE: &str = "Invalid escape character in string.";
    pub const STRING_MISS_QUOTE: &str = "Missing a closing quotation mark in string.";
    pub const NUMBER_TOO_BIG: &str = "Number too big to be stored in double.";
    pub const NUMBER_MISS_FRACTION: &str = "Miss fraction part in number.";
    pub const NUMBER_MISS_EXPONENT: &str = "Miss exponent in number.";
}

/// Triton's error texts for a value of the wrong type.
pub mod mismatch {
    pub const STRING: &str = "attempt to access JSON non-string as string";
    pub const ARRAY: &str = "attempt to access JSON non-array as array";
    pub const OBJECT: &str = "attempt to access JSON non-object as object";
    pub const BOOLEAN: &str = "attempt to access JSON non-boolean as boolean";
    pub const SIGNED: &str = "attempt to access JSON non-signed-integer as signed-integer";
    pub const UNSIGNED: &str = "attempt to access JSON non-unsigned-integer as unsigned-integer";
    pub const NUMBER: &str = "attempt to access JSON non-number as double";
    pub const MEMBERS: &str = "attempt to get members for non-object";

    /// Each error text, and the type that was expected.
    pub const WANTED: [(&str, &str); 8] = [
        (STRING, "a string"),
        (ARRAY, "an array"),
        (OBJECT, "an object"),
        (BOOLEAN, "true or false"),
        (SIGNED, "an integer"),
        (UNSIGNED, "an integer of 0 or more"),
        (NUMBER, "a number"),
        (MEMBERS, "an object"),
    ];
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An error text without what [`explained`] added.
    pub(crate) fn without_explanation(message: &str) -> &str {
        message.rsplit_once("; ").filter(|(_, added)| added.contains(" must be ")).map_or(message, |(words, _)| words)
    }

    #[track_caller]
    fn check(message: &str, expect: &str) {
        assert_eq!(explained(Status::internal(message), "'x'").message, expect);
    }

    #[test]
    fn only_errors_about_types_are_completed() {
        for (sentence, wanted) in mismatch::WANTED {
            check(&format!("before: {sentence}"), &format!("before: {sentence}; 'x' must be {wanted}"));
        }
        check("attempt to access non-existing object member 'x'", "attempt to access non-existing object member 'x'");
        let twice = explained(explained(Status::internal(mismatch::ARRAY), "'x'"), "'y'");
        assert_eq!(twice.message, "attempt to access JSON non-array as array; 'x' must be an array");
        let special = explained_as(Status::internal(mismatch::ARRAY), "'x'", "an array of strings");
        assert_eq!(special.message, "attempt to access JSON non-array as array; 'x' must be an array of strings");
    }
}
