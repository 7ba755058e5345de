//! How is a parameter stored for C?

use std::ffi::{CString, c_void};

use nerite_request::Parameter;

use super::{Kept, c_text, object};

/// A value with a fixed address, which C reads.
pub enum Value {
    /// Number 0 of the interface.
    Text(CString),
    /// Number 1.
    Int(Box<i64>),
    /// Number 2.
    Bool(Box<bool>),
    /// Number 3.
    Double(Box<f64>),
}

impl Value {
    /// Its type's number in the interface.
    pub fn kind(&self) -> u32 {
        match self {
            Value::Text(_) => 0,
            Value::Int(_) => 1,
            Value::Bool(_) => 2,
            Value::Double(_) => 3,
        }
    }

    /// Its address: of a text's first character, or of the number. It is valid as long as the value lives.
    pub fn address(&self) -> *const c_void {
        match self {
            Value::Text(text) => text.as_ptr().cast(),
            Value::Int(number) => std::ptr::from_ref::<i64>(number).cast(),
            Value::Bool(truth) => std::ptr::from_ref::<bool>(truth).cast(),
            Value::Double(number) => std::ptr::from_ref::<f64>(number).cast(),
        }
    }
}

impl From<&Parameter> for Value {
    fn from(parameter: &Parameter) -> Value {
        match parameter {
            Parameter::Bool(truth) => Value::Bool(Box::new(*truth)),
            Parameter::Int(number) => Value::Int(Box::new(*number)),
            Parameter::String(text) => Value::Text(c_text(text)),
            Parameter::Double(number) => Value::Double(Box::new(*number)),
        }
    }
}

/// `TRITONSERVER_Parameter`.
pub struct ParameterObject {
    name: String,
    value: Content,
}

/// The content of a parameter.
pub enum Content {
    /// A value.
    Value(Value),
    /// Bytes, which stay the backend's as long as the parameter lives.
    Bytes(Kept, u64),
}

impl ParameterObject {
    /// A parameter.
    pub fn new(name: String, value: Content) -> ParameterObject {
        ParameterObject { name, value }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its value, if that is a text.
    pub fn text(&self) -> Option<String> {
        match &self.value {
            Content::Value(Value::Text(text)) => Some(text.to_string_lossy().into_owned()),
            _ => None,
        }
    }

    /// The address and number of its bytes, if it has bytes.
    pub fn bytes(&self) -> Option<(Kept, u64)> {
        match &self.value {
            Content::Bytes(base, bytes) => Some((*base, *bytes)),
            Content::Value(_) => None,
        }
    }
}

object!(ParameterObject, 3, "parameter");
