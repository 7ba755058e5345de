//! How is a value read as an expected type?

use std::borrow::Cow;

use nerite_request::Status;
use nerite_request::limits::NAME_BYTES_MAX;
use nerite_tensor::Name;

use super::fault::{Fault, Malformed, explained, mismatch, prefixed};
use super::lex::{Kind, Number, Reader};
use super::limits::QUOTED_CHARS_MAX;

/// The value of a member: `None` if it is absent, `Err` if it could not be read.
pub type Seen<T> = Option<Result<T, Status>>;

impl<'t> Reader<'t> {
    /// Reads a value. Skips it if `read` refuses it, so that a syntax error further on takes precedence.
    pub fn attempt<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Fault>,
    ) -> Result<Result<T, Status>, Malformed> {
        let before = self.clone();
        match read(self) {
            Ok(value) => Ok(Ok(value)),
            Err(Fault::Malformed(malformed)) => Err(malformed),
            Err(Fault::Refused(status)) => {
                *self = before;
                self.skip()?;
                Ok(Err(status))
            }
        }
    }

    /// Reads a member's value into `seen`, unless the same key came before: the first value counts.
    pub fn once<T>(
        &mut self,
        seen: &mut Seen<T>,
        read: impl FnOnce(&mut Self) -> Result<T, Fault>,
    ) -> Result<(), Malformed> {
        if seen.is_some() {
            return self.skip();
        }
        *seen = Some(self.attempt(read)?);
        Ok(())
    }

    /// Calls `each` at the value of every member. A value that is not an object has no members.
    pub fn members<E: From<Malformed>>(
        &mut self,
        mut each: impl FnMut(&mut Self, Cow<'t, [u8]>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.kind() != Kind::Object {
            return Ok(self.skip()?);
        }
        if self.open_is_empty(b'}') {
            return Ok(());
        }
        loop {
            let key = self.key()?;
            each(self, key)?;
            if !self.follows(b'}')? {
                return Ok(());
            }
        }
    }

    /// Calls `each` at every element of an array.
    pub fn elements(&mut self, mut each: impl FnMut(&mut Self) -> Result<(), Fault>) -> Result<(), Fault> {
        if self.kind() != Kind::Array {
            return Err(refused(mismatch::ARRAY));
        }
        if self.open_is_empty(b']') {
            return Ok(());
        }
        loop {
            each(self)?;
            if !self.follows(b']')? {
                return Ok(());
            }
        }
    }

    /// A string's bytes.
    pub fn bytes(&mut self) -> Result<Cow<'t, [u8]>, Fault> {
        if self.kind() == Kind::String { Ok(self.raw_string()?) } else { Err(refused(mismatch::STRING)) }
    }

    /// A string. Invalid UTF-8 is replaced by U+FFFD.
    pub fn string(&mut self) -> Result<String, Fault> {
        Ok(text_of(self.bytes()?))
    }

    /// A short string, as [`Reader::string`].
    pub fn name(&mut self) -> Result<Name, Fault> {
        let bytes = self.bytes()?;
        Ok(Name::new(String::from_utf8_lossy(&bytes)))
    }

    /// A boolean.
    pub fn bool(&mut self) -> Result<bool, Fault> {
        if self.kind() == Kind::Bool { Ok(self.raw_bool()?) } else { Err(refused(mismatch::BOOLEAN)) }
    }

    /// An integer from 0 to 2^64 − 1.
    pub fn unsigned(&mut self) -> Result<u64, Fault> {
        match self.any_number(mismatch::UNSIGNED)? {
            Number::Unsigned(value) => Ok(value),
            _ => Err(refused(mismatch::UNSIGNED)),
        }
    }

    /// An integer from −2^63 to 2^63 − 1.
    pub fn signed(&mut self) -> Result<i64, Fault> {
        match self.any_number(mismatch::SIGNED)? {
            Number::Unsigned(value) => i64::try_from(value).map_err(|_| refused(mismatch::SIGNED)),
            Number::Negative(value) => Ok(value),
            Number::Real(_) => Err(refused(mismatch::SIGNED)),
        }
    }

    /// Any number, as the nearest double.
    pub fn double(&mut self) -> Result<f64, Fault> {
        Ok(match self.any_number(mismatch::NUMBER)? {
            Number::Unsigned(value) => value as f64,
            Number::Negative(value) => value as f64,
            Number::Real(value) => value,
        })
    }

    fn any_number(&mut self, otherwise: &'static str) -> Result<Number, Fault> {
        if self.kind() == Kind::Number { Ok(self.number()?) } else { Err(refused(otherwise)) }
    }
}

/// Text from a string's bytes. Invalid UTF-8 is replaced by U+FFFD.
pub fn text_of(bytes: Cow<'_, [u8]>) -> String {
    match bytes {
        Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Cow::Owned(bytes) => {
            String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
        }
    }
}

/// The object whose members are read. Errors name it.
#[derive(Clone, Copy, Debug)]
pub enum Owner<'n> {
    /// The document.
    Request,
    /// An input or output whose name is not known.
    Unnamed(&'static str),
    /// An input or output, and its name.
    Named(&'static str, &'n str),
}

impl Owner<'_> {
    /// The words for a member of this object in an error.
    pub fn member(self, name: &str) -> String {
        match self {
            Owner::Request => format!("'{name}'"),
            Owner::Unnamed(kind) => format!("'{name}' of an {kind}"),
            Owner::Named(kind, of) => format!("'{name}' of {kind} '{}'", abridged(of)),
        }
    }
}

/// A name shortened for an error. The length of the name was not checked yet.
pub fn abridged(name: &str) -> Cow<'_, str> {
    match name.char_indices().nth(QUOTED_CHARS_MAX) {
        None => Cow::Borrowed(name),
        Some((end, _)) => Cow::Owned(format!("{}…", &name[..end])),
    }
}

/// The value of a required member. Failures begin with `Unable to parse '{name}': `.
pub fn required<T>(seen: Seen<T>, name: &str, owner: Owner<'_>) -> Result<T, Status> {
    let found = seen.unwrap_or_else(|| Err(absent(name)));
    found.map_err(|status| unable(status, name, owner))
}

/// The value of an optional member. Failures begin with `Unable to parse '{name}': `.
pub fn optional<T>(seen: Seen<T>, name: &str, owner: Owner<'_>) -> Result<Option<T>, Status> {
    seen.transpose().map_err(|status| unable(status, name, owner))
}

fn unable(status: Status, name: &str, owner: Owner<'_>) -> Status {
    explained(prefixed(&format!("Unable to parse '{name}': "), status), owner.member(name))
}

/// The name, or an error if it is longer than `NAME_BYTES_MAX`.
pub fn short(name: Name, member: &str) -> Result<Name, Status> {
    if name.len() <= NAME_BYTES_MAX {
        return Ok(name);
    }
    Err(Status::invalid(format!("'{member}' has {} bytes, a name has at most {NAME_BYTES_MAX}", name.len())))
}

/// The error for a missing member.
pub fn absent(name: &str) -> Status {
    Status::internal(format!("attempt to access non-existing object member '{name}'"))
}

fn refused(text: &str) -> Fault {
    Fault::Refused(Status::internal(text))
}
