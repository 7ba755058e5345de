//! How is a JSON text written?

use std::cell::Cell;

use bytes::Bytes;

use super::number::{push_double, push_signed, push_unsigned};
use crate::short_answer;

/// The largest vector, in bytes, that a thread keeps to write its next short text in.
const KEPT_BYTES_MAX: usize = 4096;

thread_local! {
    static KEPT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A JSON text that is being written. The writer adds the commas. The caller writes brackets and members in order.
#[derive(Debug, Default)]
pub struct Writer {
    out: Vec<u8>,
}

impl Writer {
    /// An empty text with a capacity of `bytes`.
    pub fn with_capacity(bytes: usize) -> Writer {
        Writer { out: Vec::with_capacity(bytes) }
    }

    /// An empty text in the vector that this thread kept, for [`Writer::into_shared`].
    pub fn kept() -> Writer {
        // An error means that the thread ends.
        Writer { out: KEPT.try_with(Cell::take).unwrap_or_default() }
    }

    /// The text as `Bytes`. A short text is copied to memory of its own length, and this thread keeps the vector. `Bytes` that take over a
    /// vector with unused capacity would allocate, and keep all of it.
    pub fn into_shared(mut self) -> Bytes {
        if self.out.capacity() > KEPT_BYTES_MAX {
            return Bytes::from(self.out);
        }
        let text = short_answer::copy(&self.out);
        self.out.clear();
        // An error means that the thread ends.
        let _ = KEPT.try_with(|kept| kept.set(self.out));
        text
    }

    /// The text.
    pub fn into_bytes(self) -> Vec<u8> {
        self.out
    }

    /// Reserves capacity for `bytes` more.
    pub fn reserve(&mut self, bytes: usize) {
        self.out.reserve(bytes);
    }

    /// Writes an object. `members` writes its members.
    pub fn object(&mut self, members: impl FnOnce(&mut Writer)) {
        self.bracket(b'{', b'}', members);
    }

    /// Writes an array. `elements` writes its elements.
    pub fn array(&mut self, elements: impl FnOnce(&mut Writer)) {
        self.bracket(b'[', b']', elements);
    }

    /// Writes a member's key. Its value must be written next.
    pub fn key(&mut self, name: &str) -> &mut Writer {
        self.string(name.as_bytes());
        self.out.push(b':');
        self
    }

    /// Writes a string. Bytes above ASCII are not escaped.
    pub fn string(&mut self, text: &[u8]) {
        self.separate();
        self.out.push(b'"');
        let mut rest = text;
        while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)) {
            self.out.extend_from_slice(&rest[..at]);
            self.escaped(rest[at]);
            rest = &rest[at + 1..];
        }
        self.out.extend_from_slice(rest);
        self.out.push(b'"');
    }

    /// Writes a boolean.
    pub fn bool(&mut self, value: bool) {
        self.separate();
        self.out.extend_from_slice(if value { b"true" } else { b"false" });
    }

    /// Writes an integer.
    pub fn signed(&mut self, value: i64) {
        self.separate();
        push_signed(&mut self.out, value);
    }

    /// Writes an integer of 0 or more.
    pub fn unsigned(&mut self, value: u64) {
        self.separate();
        push_unsigned(&mut self.out, value);
    }

    /// Writes a floating-point number.
    pub fn double(&mut self, value: f64) {
        self.separate();
        push_double(&mut self.out, value);
    }

    fn bracket(&mut self, open: u8, close: u8, inside: impl FnOnce(&mut Writer)) {
        self.separate();
        self.out.push(open);
        inside(self);
        self.out.push(close);
    }

    /// Writes a comma, unless this is the first item in its brackets or a member's value. No value ends in one of these bytes: a string ends in its
    /// quotation mark.
    fn separate(&mut self) {
        if !matches!(self.out.last(), None | Some(b'{' | b'[' | b':')) {
            self.out.push(b',');
        }
    }

    fn escaped(&mut self, byte: u8) {
        let short = match byte {
            b'"' | b'\\' => byte,
            0x08 => b'b',
            0x0c => b'f',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            _ => {
                const HEX: &[u8; 16] = b"0123456789ABCDEF";
                self.out.extend_from_slice(b"\\u00");
                return self.out.extend([byte >> 4, byte & 15].map(|nibble| HEX[usize::from(nibble)]));
            }
        };
        self.out.extend([b'\\', short]);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(write: impl FnOnce(&mut Writer), text: &str) {
        let mut writer = Writer::default();
        write(&mut writer);
        assert_eq!(String::from_utf8(writer.into_bytes()).unwrap(), text);
    }

    #[test]
    fn a_thread_keeps_the_vector_of_a_short_text() {
        let write = |length: usize| {
            let mut writer = Writer::kept();
            writer.string(&vec![b'x'; length]);
            (writer.out.as_ptr(), writer.into_shared())
        };
        let (place, short) = write(100);
        let (again, other) = write(50);
        assert_eq!((again, short.len(), other.len()), (place, 102, 52));
        let (_, long) = write(2 * KEPT_BYTES_MAX);
        assert_eq!(long.len(), 2 * KEPT_BYTES_MAX + 2);
        assert!(KEPT.take().capacity() <= KEPT_BYTES_MAX);
    }

    #[test]
    fn commas_are_only_between_items() {
        check(|w| w.object(|_| {}), "{}");
        check(|w| w.array(|w| w.array(|_| {})), "[[]]");
        check(
            |w| {
                w.object(|w| {
                    w.key("a").signed(-1);
                    w.key("b").array(|w| (1..3).for_each(|n| w.unsigned(n)));
                    w.key("c").object(|w| w.key("d").bool(true));
                    w.key("e").double(0.5);
                });
            },
            r#"{"a":-1,"b":[1,2],"c":{"d":true},"e":0.5}"#,
        );
    }

    #[test]
    fn strings_keep_utf_8_and_escape_what_json_must() {
        check(
            |w| w.string("grün \"\\/\n\r\t\u{8}\u{c}\u{1f}\u{0}\u{7f}".as_bytes()),
            "\"grün \\\"\\\\/\\n\\r\\t\\b\\f\\u001F\\u0000\u{7f}\"",
        );
        check(|w| w.array(|w| [":", "{", "["].iter().for_each(|s| w.string(s.as_bytes()))), r#"[":","{","["]"#);
    }
}
