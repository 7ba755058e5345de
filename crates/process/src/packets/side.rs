//! What is said on the side channel?

use std::fmt::{Display, Formatter, Result};

use serde_json::Value;

use super::numbers;
use super::tensors::{List, Text};

/// A packet of the process's as the server reads it.
#[derive(Clone, Debug)]
pub struct SideSaid(Value);

impl SideSaid {
    /// From the packet's text.
    pub fn read(text: &[u8]) -> serde_json::Result<SideSaid> {
        serde_json::from_slice(text).map(SideSaid)
    }

    /// A line for the log.
    pub fn log(&self) -> Option<Log<'_>> {
        let [level, text] = self.0.get("log")?.as_array()?.as_slice() else { return None };
        let place = || {
            let [file, line] = self.0.get("at")?.as_array()?.as_slice() else { return None };
            Some((file.as_str()?, u32::try_from(line.as_u64()?).ok()?))
        };
        let (level, text) = (level.as_str().unwrap_or_default(), text.as_str().unwrap_or_default());
        Some(Log { level, text, at: place().unwrap_or_default() })
    }

    /// The number of a request: whether its client gave it up is asked.
    pub fn cancelled(&self) -> Option<u64> {
        self.0.get("cancelled")?.as_u64()
    }

    /// Memory that the model keeps arrays on no more: which of it was kept is asked.
    pub fn let_go(&self) -> Option<impl Iterator<Item = u64>> {
        Some(numbers(Some(self.0.get("let_go")?)))
    }
}

/// A line for the server's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log<'a> {
    /// `ERROR`, `WARNING`, `INFO` or `VERBOSE`.
    pub level: &'a str,
    /// The line.
    pub text: &'a str,
    /// The file and the line in it that logged; an empty file for what no model logged.
    pub at: (&'a str, u32),
}

impl Display for Log<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Log { level, text, at: (file, line) } = self;
        write!(f, r#"{{"log":["{level}",{}],"at":[{},{line}]}}"#, Text(text), Text(file))
    }
}

/// The question whether the client gave up the request of this number.
#[derive(Clone, Copy, Debug)]
pub struct IsCancelled(pub u64);

impl Display for IsCancelled {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"cancelled":{}}}"#, self.0)
    }
}

/// The answer to [`SideSaid::cancelled`].
#[derive(Clone, Copy, Debug)]
pub struct Cancelled(pub bool);

impl Display for Cancelled {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"cancelled":{}}}"#, self.0)
    }
}

/// The question of [`SideSaid::let_go`], and its answer.
#[derive(Clone, Copy, Debug)]
pub struct LetGo<'a>(pub &'a [u64]);

impl Display for LetGo<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"let_go":{}}}"#, List(self.0.iter()))
    }
}
