//! What is the process of a model called, in lists of processes and in the log?

use std::fmt::{Display, Formatter, Result};

use crate::limits::TITLE_NAME_BYTES_MAX;
use crate::process_output::escaped;

/// The model of a process, and the work of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessName {
    model: String,
    work: ProcessWork,
}

/// What a process does for its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessWork {
    /// It runs this instance, counted from 0 over all instances of the model.
    Instance(usize),
    /// The processes of instances are forked from it.
    Template,
    /// It completes the configuration, and ends.
    Configuration,
}

impl ProcessName {
    /// The name of a process that does this for the model.
    pub fn new(model: &str, work: ProcessWork) -> ProcessName {
        ProcessName { model: model.to_owned(), work }
    }

    /// The model's name.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The instance that the process runs, if it runs one.
    pub fn instance(&self) -> Option<usize> {
        match self.work {
            ProcessWork::Instance(index) => Some(index),
            ProcessWork::Template | ProcessWork::Configuration => None,
        }
    }

    /// What the process does.
    pub fn work(&self) -> ProcessWork {
        self.work
    }

    /// The text that `ps` shows as the process's command. Control characters of the model's name are escaped, and a long name is cut.
    pub fn title(&self) -> String {
        format!("nerite: model {} {}", escaped(&self.model, TITLE_NAME_BYTES_MAX), self.work)
    }
}

impl Display for ProcessName {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "model '{}' {}", self.model, self.work)
    }
}

impl Display for ProcessWork {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            ProcessWork::Instance(index) => write!(f, "instance {index}"),
            ProcessWork::Template => f.write_str("template"),
            ProcessWork::Configuration => f.write_str("configuration"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(model: &str, work: ProcessWork, expect: &str) {
        assert_eq!(ProcessName::new(model, work).title(), expect);
    }

    #[test]
    fn a_title_is_one_short_line() {
        check("m", ProcessWork::Instance(1), "nerite: model m instance 1");
        check("m", ProcessWork::Template, "nerite: model m template");
        check(
            "a b\n\0\x1b[2Jc",
            ProcessWork::Configuration,
            "nerite: model a b\\u000a\\u0000\\u001b[2Jc configuration",
        );
        let long = "\u{20ac}".repeat(TITLE_NAME_BYTES_MAX);
        let kept = "\u{20ac}".repeat(TITLE_NAME_BYTES_MAX / 3);
        check(&long, ProcessWork::Instance(0), &format!("nerite: model {kept} instance 0"));
    }
}
