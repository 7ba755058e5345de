//! What may a request or response carry beside tensors?

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

/// Parameters in the order they were given. Few, so a list beats a map.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters(Vec<(String, Parameter)>);

impl Parameters {
    /// No parameters.
    pub const fn new() -> Parameters {
        Parameters(Vec::new())
    }

    /// Adds one; a key given twice keeps its first value, as Triton's reader does.
    pub fn insert(&mut self, key: impl Into<String>, value: Parameter) {
        let key = key.into();
        if self.get(&key).is_none() {
            self.0.push((key, value));
        }
    }

    /// The value under `key`.
    pub fn get(&self, key: &str) -> Option<&Parameter> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v)
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Parameter)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
