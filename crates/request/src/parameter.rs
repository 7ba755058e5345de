//! What may a request or response have beside tensors?

use crate::names::NameTable;

/// The value of one parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Parameter {
    /// A truth value.
    Bool(bool),
    /// A signed integer.
    Int(i64),
    /// Text.
    String(String),
    /// A floating-point number.
    Double(f64),
}

/// Parameters in the order they were given.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    list: Vec<(String, Parameter)>,
    table: NameTable,
}

impl Parameters {
    /// No parameters.
    pub const fn new() -> Parameters {
        Parameters { list: Vec::new(), table: NameTable::new() }
    }

    /// Adds a parameter. If a key is given twice, the first value is kept, as in Triton.
    pub fn insert(&mut self, key: impl Into<String>, value: Parameter) {
        let key = key.into();
        if self.get(&key).is_none() {
            self.list.push((key, value));
            self.table.added(&self.list, |(key, _)| key);
        }
    }

    /// The value under `key`.
    pub fn get(&self, key: &str) -> Option<&Parameter> {
        self.table.find(&self.list, |(key, _)| key, key).map(|at| &self.list[at].1)
    }

    /// All parameters, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Parameter)> {
        self.list.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// The number of parameters.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

impl PartialEq for Parameters {
    fn eq(&self, other: &Parameters) -> bool {
        self.list == other.list
    }
}
