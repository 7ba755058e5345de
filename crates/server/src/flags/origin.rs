//! Where was a setting given?

use std::fmt;

/// The places where settings come from. A later one overrides those before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A line of a file of settings.
    File {
        /// The file, as it was named.
        path: String,
        /// The line, from 1.
        line: usize,
    },
    /// A variable of the environment.
    Variable(String),
    /// The command line.
    CommandLine,
}

impl Origin {
    /// Which places win over which: a higher number over a lower one.
    pub fn rank(&self) -> u8 {
        match self {
            Origin::File { .. } => 0,
            Origin::Variable(_) => 1,
            Origin::CommandLine => 2,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { path, line } => write!(f, "{path}:{line}"),
            Origin::Variable(name) => write!(f, "{name}"),
            Origin::CommandLine => f.write_str("command line"),
        }
    }
}
