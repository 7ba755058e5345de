//! What does a process report when its model is loaded?

use std::fmt::{Display, Formatter, Result};

use serde_json::Value;

use super::tensors::{List, Text};

/// The answer of a process that has loaded its model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ready<'a> {
    /// The version of its interpreter, if it has one.
    pub python: Option<&'a str>,
    /// The version of numpy there.
    pub numpy: Option<&'a str>,
    /// Whether it maps memory under a guard.
    pub guard: bool,
    /// Whether its model reports its own readiness, on the channel for calls.
    pub decides: bool,
    /// The user's own files, outside the model's directory, that the process imported.
    pub imported: Vec<ImportedFile<'a>>,
    /// How many more of them there are.
    pub unreported: u64,
}

/// A file that a process imported, in the state that it had then. `[path, bytes, modified_ns]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportedFile<'a> {
    /// Its path.
    pub path: &'a str,
    /// Its size in bytes.
    pub bytes: u64,
    /// The time of its last modification, in nanoseconds since 1970.
    pub modified_ns: i64,
}

impl<'a> Ready<'a> {
    /// Parses JSON. Invalid parts are left out.
    pub(super) fn read(ready: &'a Value) -> Ready<'a> {
        let text = |key: &str| ready.get(key).and_then(Value::as_str);
        let is_true = |key: &str| ready.get(key).and_then(Value::as_bool).unwrap_or(false);
        let imported = ready.get("imported").and_then(Value::as_array).into_iter().flatten();
        Ready {
            python: text("python"),
            numpy: text("numpy"),
            guard: is_true("guard"),
            decides: is_true("decides"),
            imported: imported.filter_map(ImportedFile::read).collect(),
            unreported: ready.get("unreported").and_then(Value::as_u64).unwrap_or(0),
        }
    }
}

impl<'a> ImportedFile<'a> {
    fn read(value: &'a Value) -> Option<ImportedFile<'a>> {
        let [path, bytes, modified_ns] = value.as_array()?.as_slice() else { return None };
        Some(ImportedFile { path: path.as_str()?, bytes: bytes.as_u64()?, modified_ns: modified_ns.as_i64()? })
    }
}

impl Display for Ready<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(r#"{"ready":{"#)?;
        for (key, text) in [("python", self.python), ("numpy", self.numpy)] {
            if let Some(text) = text {
                write!(f, r#""{key}":{},"#, Text(text))?;
            }
        }
        write!(f, r#""guard":{}"#, self.guard)?;
        if self.decides {
            f.write_str(r#","decides":true"#)?;
        }
        if !self.imported.is_empty() {
            write!(f, r#","imported":{}"#, List(self.imported.iter()))?;
        }
        if self.unreported > 0 {
            write!(f, r#","unreported":{}"#, self.unreported)?;
        }
        f.write_str("}}")
    }
}

impl Display for ImportedFile<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "[{},{},{}]", Text(self.path), self.bytes, self.modified_ns)
    }
}
