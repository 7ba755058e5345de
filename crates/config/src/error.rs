//! Which errors can a configuration have?

use std::fmt;

use thiserror::Error;

/// Why a configuration was refused. The error code depends only on the variant. The text is the one that Triton's clients see.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// config.pbtxt is not a valid text form of a model configuration.
    #[error("failed to read text proto from {path}: {fault}")]
    Text {
        /// The path of the file, for the operator.
        path: String,
        /// The position, and the reason.
        fault: TextFault,
    },
    /// The `config` parameter of a load request is not a valid JSON form.
    #[error("Invalid config override: {reason}")]
    Override {
        /// The position, and the reason.
        reason: String,
    },
    /// The configuration is inconsistent, or does not fit the host or the model's graph.
    #[error("{text}")]
    Invalid {
        /// The error text.
        text: String,
    },
    /// The configuration requests something that the server does not support.
    #[error("{text}")]
    Unsupported {
        /// The error text.
        text: String,
    },
    /// A case that earlier checks should have refused.
    #[error("{text}")]
    Internal {
        /// The error text.
        text: String,
    },
}

impl ConfigError {
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::Invalid { text: text.into() }
    }
}

/// `return Err` with a [`ConfigError::Invalid`] whose text is formatted as by `format!`.
macro_rules! refuse {
    ($($text:tt)*) => {
        return Err($crate::ConfigError::invalid(format!($($text)*)))
    };
}
pub(crate) use refuse;

/// A position in a text, and the fault there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextFault {
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// What was found, and what was expected instead.
    pub problem: String,
    /// What to write instead, if that can be guessed.
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
