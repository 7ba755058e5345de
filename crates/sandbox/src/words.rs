//! How is a policy passed in a command line?

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use crate::policy::{Named, Policy, Processes};

/// The separator before the program.
const END: &str = "--";

impl Policy {
    /// The policy as arguments. A program and its own arguments may follow.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let mut words = Vec::new();
        let mut add = |key: &str, value: &OsStr| words.push(joined(key, value));
        if self.is_best_effort {
            add("best-effort", "".as_ref());
        }
        if self.has_network {
            add("network", "".as_ref());
        }
        let numbers =
            [("memory", self.memory_bytes), ("group-memory", self.group_memory_bytes), ("file-size", self.file_bytes)];
        for (key, number) in numbers {
            if let Some(number) = number {
                add(key, number.to_string().as_ref());
            }
        }
        match self.processes {
            Processes::Itself => {}
            Processes::AtMost(count) => add("processes", count.to_string().as_ref()),
            Processes::Any => add("processes", "any".as_ref()),
        }
        if let Some(group) = &self.group {
            add("group", group.as_ref());
        }
        if let Some(arg0) = &self.arg0 {
            add("arg0", arg0);
        }
        self.read.iter().for_each(|path| add("read", path.as_ref()));
        self.write.iter().for_each(|path| add("write", path.as_ref()));
        for Named { path, is_writable } in &self.named {
            add(if *is_writable { "named-write" } else { "named-read" }, path.as_ref());
        }
        for (name, value) in &self.variables {
            match value {
                Some(value) => add("set", &joined_with(name, value)),
                None => add("unset", name),
            }
        }
        words.push(END.into());
        words
    }

    /// Reads what [`Policy::words`] wrote. Also returns the rest: a program and its arguments. An error is the first invalid word.
    pub(crate) fn read_words(
        mut words: impl Iterator<Item = OsString>,
    ) -> Result<(Policy, impl Iterator<Item = OsString>), OsString> {
        let mut policy = Policy::default();
        while let Some(word) = words.next() {
            if word == END {
                return Ok((policy, words));
            }
            policy.take(&word).ok_or(word)?;
        }
        Err(END.into())
    }

    fn take(&mut self, word: &OsStr) -> Option<()> {
        let (key, value) = parted(word.as_bytes())?;
        let number = || std::str::from_utf8(value).ok()?.parse::<u64>().ok();
        let path = || PathBuf::from(OsString::from_vec(value.to_vec()));
        match key {
            b"best-effort" => self.is_best_effort = true,
            b"network" => self.has_network = true,
            b"memory" => self.memory_bytes = Some(number()?),
            b"group-memory" => self.group_memory_bytes = Some(number()?),
            b"group" => self.group = Some(path()),
            b"file-size" => self.file_bytes = Some(number()?),
            b"processes" if value == b"any" => self.processes = Processes::Any,
            b"processes" => self.processes = Processes::AtMost(number()?),
            b"arg0" => self.arg0 = Some(OsStr::from_bytes(value).into()),
            b"read" => self.read.push(path()),
            b"write" => self.write.push(path()),
            b"named-read" => self.named.push(Named { path: path(), is_writable: false }),
            b"named-write" => self.named.push(Named { path: path(), is_writable: true }),
            b"set" => {
                let (name, value) = parted(value)?;
                self.variables.push((OsStr::from_bytes(name).into(), Some(OsStr::from_bytes(value).into())));
            }
            b"unset" => self.variables.push((OsStr::from_bytes(value).into(), None)),
            _ => return None,
        }
        Some(())
    }
}

fn joined(key: &str, value: &OsStr) -> OsString {
    joined_with(key.as_ref(), value)
}

fn joined_with(key: &OsStr, value: &OsStr) -> OsString {
    let mut word = key.to_owned();
    word.push("=");
    word.push(value);
    word
}

fn parted(word: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = word.iter().position(|byte| *byte == b'=')?;
    Some((word.get(..at)?, word.get(at + 1..)?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_is_written_is_what_is_read() {
        let strange = || PathBuf::from(OsString::from_vec(b"/a=b/ \xff--".to_vec()));
        let policy = Policy {
            is_best_effort: true,
            read: vec!["/usr".into(), strange()],
            write: vec!["/tmp/a".into()],
            named: vec![Named { path: strange(), is_writable: true }, Named { path: "/b".into(), is_writable: false }],
            has_network: true,
            memory_bytes: Some(1 << 40),
            group_memory_bytes: Some(1 << 41),
            group: Some(strange()),
            arg0: Some("a: b = c".into()),
            file_bytes: Some(0),
            processes: Processes::AtMost(7),
            variables: vec![("A".into(), Some("b=c".into())), ("D".into(), None), ("E".into(), Some("".into()))],
        };
        for policy in [policy, Policy { processes: Processes::Any, ..Policy::default() }, Policy::default()] {
            let words = policy.words().into_iter().chain(["python3".into(), "--".into()]);
            let (read, rest) = Policy::read_words(words).unwrap();
            assert_eq!((read, rest.collect::<Vec<_>>()), (policy, vec!["python3".into(), "--".into()]));
        }
    }

    #[track_caller]
    fn check(words: &[&str], wrong: &str) {
        let found = Policy::read_words(words.iter().map(OsString::from)).map(|(policy, _)| policy);
        assert_eq!(found, Err(OsString::from(wrong)));
    }

    #[test]
    fn a_word_that_is_none_of_a_policys_is_refused() {
        check(&["read=/usr"], "--");
        check(&["python3", "--"], "python3");
        check(&["memory=much", "--"], "memory=much");
        check(&["processes=", "--"], "processes=");
        check(&["set=NAME", "--"], "set=NAME");
    }
}
