//! How is config.pbtxt read?
//!
//! The reader accepts what protobuf's reader for C++ accepts, because existing repositories were written for that. `:` may be omitted before a
//! message. A list may be in `[ ]`, or consist of repeated fields, or both. Fields may end in `,` or `;`. Messages may use `< >`. Strings may be
//! divided into adjacent parts. Anything else is refused with its position and, if it can be guessed, the cure.

mod lex;
mod read;
pub(crate) mod scalar;

use crate::error::{ConfigError, TextFault};
use crate::{ModelConfig, schema};

/// Reads the text form. `path` is only used in errors.
pub fn parse_text(path: &str, text: &[u8]) -> Result<ModelConfig, ConfigError> {
    read::read(text, schema::model_config()).map(|config| schema::to_typed(&config)).map_err(|(fault, at)| {
        let fault = if follows_quote(text, at) { fault.cure(UNESCAPED) } else { fault };
        let (line, column) = place(text, at);
        ConfigError::Text {
            path: path.to_owned(),
            fault: TextFault { line, column, problem: fault.problem, cure: fault.cure },
        }
    })
}

/// The cure where a string seems to have quotation marks inside.
const UNESCAPED: &str = "write \\\" for a quotation mark in a string";

/// Whether there is a quotation mark directly before the offset. Then the string before it has probably ended too early.
fn follows_quote(text: &[u8], at: usize) -> bool {
    let is_word = text.get(at).is_some_and(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'$'));
    is_word && at.checked_sub(1).and_then(|before| text.get(before)) == Some(&b'"')
}

/// A fault, without its position.
#[derive(Debug)]
struct Fault {
    problem: String,
    cure: Option<String>,
}

impl Fault {
    fn new(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), cure: None }
    }

    fn cure(mut self, cure: impl Into<String>) -> Self {
        self.cure = Some(cure.into());
        self
    }

    fn maybe(mut self, cure: Option<String>) -> Self {
        self.cure = cure;
        self
    }

    fn at(self, offset: usize) -> (Self, usize) {
        (self, offset)
    }
}

/// A result whose error knows the offset in the text.
type Positioned<T> = Result<T, (Fault, usize)>;

/// Line and column of a byte offset, both counted from 1.
fn place(text: &[u8], at: usize) -> (usize, usize) {
    let before = &text[..at.min(text.len())];
    let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
    let line = before.split(|&byte| byte == b'\n').count();
    // Continuation bytes of a UTF-8 character do not count as columns.
    let column = before[line_start..].iter().filter(|&&byte| byte & 0xC0 != 0x80).count() + 1;
    (line, column)
}

#[cfg(test)]
mod tests;
