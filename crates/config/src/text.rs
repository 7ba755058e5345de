//! What does config.pbtxt say?
//!
//! The reader accepts what protobuf's own reader for C++ accepts, since that is
//! what existing repositories were written against: `:` may be left out before a
//! message, a list may stand in `[ ]` or as repeated fields or both, fields may
//! end in `,` or `;`, messages may use `< >`, strings may be cut into adjacent
//! pieces. Anything else is refused with its place and, where it can be guessed,
//! the cure.

mod lex;
mod read;
pub(crate) mod scalar;

use crate::error::{ConfigError, TextFault};
use crate::{ModelConfig, schema};

/// Reads the text form. `path` only names the file in the error.
pub fn parse_text(path: &str, text: &[u8]) -> Result<ModelConfig, ConfigError> {
    read::read(text, schema::model_config()).map(|config| schema::to_typed(&config)).map_err(|(fault, at)| {
        let (line, column) = place(text, at);
        ConfigError::Text {
            path: path.to_owned(),
            fault: TextFault { line, column, problem: fault.problem, cure: fault.cure },
        }
    })
}

/// What is wrong, apart from where.
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

/// Line and column, both from 1, of a byte offset.
fn place(text: &[u8], at: usize) -> (usize, usize) {
    let before = &text[..at.min(text.len())];
    let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
    let line = before.split(|&byte| byte == b'\n').count();
    // Bytes that continue a UTF-8 character do not start a column.
    let column = before[line_start..].iter().filter(|&&byte| byte & 0xC0 != 0x80).count() + 1;
    (line, column)
}

#[cfg(test)]
mod tests;
