//! Why can a text not be read as what we want?

use std::fmt::Display;

use nerite_request::Status;

/// A text that is no JSON: what is wrong, in RapidJSON's words, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to parse the request JSON buffer: {reason} at {offset}")]
pub struct Malformed {
    /// RapidJSON's sentence.
    pub reason: &'static str,
    /// The byte, counted from 0.
    pub offset: usize,
}

impl From<Malformed> for Status {
    /// Triton counts a bad text as its own fault.
    fn from(malformed: Malformed) -> Status {
        Status::internal(malformed.to_string())
    }
}

/// Why a value could not be read.
#[derive(Debug)]
pub enum Fault {
    /// The text is no JSON: nothing after this point means anything.
    Malformed(Malformed),
    /// The text is fine, the value is not: the reader can go on after it.
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

/// The same failure with `before` in front of its text.
pub fn prefixed(before: &str, status: Status) -> Status {
    Status::new(status.code, format!("{before}{}", status.message))
}

/// The same failure; where a value had the wrong type, its text goes on with `what` must be which type: Triton's sentence tells neither.
pub fn explained(status: Status, what: impl Display) -> Status {
    let wanted = mismatch::WANTED.iter().find(|(sentence, _)| status.message.ends_with(sentence));
    match wanted {
        Some((_, wanted)) => must_be(status, what, wanted),
        None => status,
    }
}

/// As [`explained`], where the type is more than its own sentence tells.
pub fn explained_as(status: Status, what: impl Display, wanted: &str) -> Status {
    if mismatch::WANTED.iter().any(|(sentence, _)| status.message.ends_with(sentence)) {
        return must_be(status, what, wanted);
    }
    status
}

fn must_be(status: Status, what: impl Display, wanted: &str) -> Status {
    Status::new(status.code, format!("{}; {what} must be {wanted}", status.message))
}

/// RapidJSON's sentences.
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

/// Triton's sentences about values of another type than it wants.
pub mod mismatch {
    pub const STRING: &str = "attempt to access JSON non-string as string";
    pub const ARRAY: &str = "attempt to access JSON non-array as array";
    pub const OBJECT: &str = "attempt to access JSON non-object as object";
    pub const BOOLEAN: &str = "attempt to access JSON non-boolean as boolean";
    pub const SIGNED: &str = "attempt to access JSON non-signed-integer as signed-integer";
    pub const UNSIGNED: &str = "attempt to access JSON non-unsigned-integer as unsigned-integer";
    pub const NUMBER: &str = "attempt to access JSON non-number as double";
    pub const MEMBERS: &str = "attempt to get members for non-object";

    /// Each sentence, and the type that is wanted where it is said.
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

    /// A refusal without what [`explained`] added to Triton's words.
    pub(crate) fn in_tritons_words(message: &str) -> &str {
        message.rsplit_once("; ").filter(|(_, added)| added.contains(" must be ")).map_or(message, |(words, _)| words)
    }

    #[track_caller]
    fn check(message: &str, expect: &str) {
        assert_eq!(explained(Status::internal(message), "'x'").message, expect);
    }

    #[test]
    fn a_wrong_type_is_told_behind_tritons_words_and_nothing_else_is() {
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
