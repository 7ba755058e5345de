//! What can be wrong with a configuration?

use std::fmt;

use thiserror::Error;

/// Why a configuration was refused. The variant says whose fault it is, which is
/// all a table of codes needs; the text is the one Triton's clients see.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// config.pbtxt is not the text form of a model configuration.
    #[error("failed to read text proto from {path}: {fault}")]
    Text {
        /// The file as the operator knows it.
        path: String,
        /// Where and why.
        fault: TextFault,
    },
    /// The `config` parameter of a load request is not the JSON form of one.
    #[error("Invalid config override: {reason}")]
    Override {
        /// Where and why.
        reason: String,
    },
    /// It can be read, but contradicts itself, the host or the model's graph.
    #[error("{text}")]
    Invalid {
        /// The whole sentence.
        text: String,
    },
    /// It asks for what the server does not do.
    #[error("{text}")]
    Unsupported {
        /// The whole sentence.
        text: String,
    },
    /// It got further than the checks before should have let it.
    #[error("{text}")]
    Internal {
        /// The whole sentence.
        text: String,
    },
}

impl ConfigError {
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::Invalid { text: text.into() }
    }
}

/// `return Err` with an [`ConfigError::Invalid`] made as by `format!`.
macro_rules! refuse {
    ($($text:tt)*) => {
        return Err($crate::ConfigError::invalid(format!($($text)*)))
    };
}
pub(crate) use refuse;

/// A place in a text and what is wrong there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextFault {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// What was found, and what was expected in its place.
    pub problem: String,
    /// What to write instead, where that can be guessed.
    pub cure: Option<String>,
}

impl fmt::Display for TextFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.problem)?;
        match &self.cure {
            Some(cure) => write!(f, "; {cure}"),
            None => Ok(()),
        }
    }
}
