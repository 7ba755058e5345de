//! How are the tokens of a JSON text read?

use std::borrow::Cow;

use super::fault::{Malformed, reason};

/// A position in a JSON text. Every method that reads a value starts at its first byte and stops after its last.
#[derive(Clone)]
pub struct Reader<'t> {
    text: &'t [u8],
    at: usize,
}

/// The type of a value, by its first byte. A byte that starts no value counts as a number, and is refused when that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Object,
    Array,
    String,
    Bool,
    Null,
    Number,
}

/// A number. Integers keep all their digits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// An integer from 0 to 2^64 − 1.
    Unsigned(u64),
    /// An integer from −2^63 to −1.
    Negative(i64),
    /// Any other number.
    Real(f64),
}

impl<'t> Reader<'t> {
    /// A reader at the first value of `text`.
    pub fn new(text: &'t [u8]) -> Result<Reader<'t>, Malformed> {
        let at = if text.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
        let mut reader = Reader { text, at };
        reader.space();
        if matches!(reader.peek(), 0 | b']' | b'}' | b',' | b':') {
            return reader.fail(reason::DOCUMENT_EMPTY);
        }
        Ok(reader)
    }

    /// Checks that nothing follows the last value.
    pub fn finish(&mut self) -> Result<(), Malformed> {
        self.space();
        if self.peek() == 0 { Ok(()) } else { self.fail(reason::ROOT_NOT_SINGULAR) }
    }

    /// The next byte. 0 at the end of the text; a NUL byte ends the text too.
    pub fn peek(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or(0)
    }

    /// Skips the next byte if it is `byte`. Returns whether it was.
    pub fn eat(&mut self, byte: u8) -> bool {
        let there = self.peek() == byte;
        self.at += usize::from(there);
        there
    }

    /// Skips white space.
    pub fn space(&mut self) {
        while matches!(self.peek(), b' ' | b'\n' | b'\r' | b'\t') {
            self.at += 1;
        }
    }

    /// The index of the next byte in the text.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Length of the whole text in bytes. The text cannot have more values than that.
    pub fn text_len(&self) -> usize {
        self.text.len()
    }

    /// An error at this position.
    pub fn fail<T>(&self, reason: &'static str) -> Result<T, Malformed> {
        Err(Malformed { reason, offset: self.at })
    }

    /// The type of the next value.
    pub fn kind(&self) -> Kind {
        match self.peek() {
            b'{' => Kind::Object,
            b'[' => Kind::Array,
            b'"' => Kind::String,
            b't' | b'f' => Kind::Bool,
            b'n' => Kind::Null,
            _ => Kind::Number,
        }
    }

    /// Reads a member's key and its colon. The reader is then at the member's value.
    pub fn key(&mut self) -> Result<Cow<'t, [u8]>, Malformed> {
        if self.peek() != b'"' {
            return self.fail(reason::OBJECT_MISS_NAME);
        }
        let key = self.raw_string()?;
        self.space();
        if !self.eat(b':') {
            return self.fail(reason::OBJECT_MISS_COLON);
        }
        self.space();
        Ok(key)
    }

    /// The bytes of a string. They may be invalid UTF-8, as with RapidJSON.
    pub fn raw_string(&mut self) -> Result<Cow<'t, [u8]>, Malformed> {
        self.at += 1;
        let start = self.at;
        self.plain_run()?;
        let plain = &self.text[start..self.at];
        if self.eat(b'"') {
            return Ok(Cow::Borrowed(plain));
        }
        let mut out = plain.to_vec();
        while !self.eat(b'"') {
            if self.peek() == b'\\' {
                self.escape(&mut out)?;
            }
            let start = self.at;
            self.plain_run()?;
            out.extend_from_slice(&self.text[start..self.at]);
        }
        Ok(Cow::Owned(out))
    }

    /// Skips to the next quotation mark or backslash.
    fn plain_run(&mut self) -> Result<(), Malformed> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let len = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)).unwrap_or(rest.len());
        self.at += len;
        match self.peek() {
            b'"' | b'\\' => Ok(()),
            0 => self.fail(reason::STRING_MISS_QUOTE),
            _ => self.fail(reason::STRING_ESCAPE),
        }
    }

    fn escape(&mut self, out: &mut Vec<u8>) -> Result<(), Malformed> {
        let start = self.at;
        self.at += 1;
        let plain = match self.peek() {
            byte @ (b'"' | b'\\' | b'/') => byte,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                self.at += 1;
                let character = self.unicode(start)?;
                out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => return Err(Malformed { reason: reason::STRING_ESCAPE, offset: start }),
        };
        self.at += 1;
        out.push(plain);
        Ok(())
    }

    /// Reads the character after `\u`. Its escape began at `start`.
    fn unicode(&mut self, start: usize) -> Result<char, Malformed> {
        let bad_pair = Malformed { reason: reason::STRING_SURROGATE, offset: start };
        let first = self.hex4(start)?;
        if !(0xd800..=0xdbff).contains(&first) {
            return char::from_u32(first).ok_or(bad_pair);
        }
        if !(self.eat(b'\\') && self.eat(b'u')) {
            return Err(bad_pair);
        }
        let second = self.hex4(start)?;
        if !(0xdc00..=0xdfff).contains(&second) {
            return Err(bad_pair);
        }
        char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)).ok_or(bad_pair)
    }

    fn hex4(&mut self, start: usize) -> Result<u32, Malformed> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = char::from(self.peek()).to_digit(16);
            code = code * 16 + digit.ok_or(Malformed { reason: reason::STRING_HEX, offset: start })?;
            self.at += 1;
        }
        Ok(code)
    }

    /// Reads `true`, `false` or `null`. An error has the offset of the first wrong letter.
    pub fn word(&mut self, word: &'static [u8]) -> Result<(), Malformed> {
        for &letter in word {
            if !self.eat(letter) {
                return self.fail(reason::VALUE_INVALID);
            }
        }
        Ok(())
    }

    /// Reads a boolean.
    pub fn raw_bool(&mut self) -> Result<bool, Malformed> {
        let truth = self.peek() == b't';
        self.word(if truth { b"true" } else { b"false" })?;
        Ok(truth)
    }

    /// Reads a number, or `NaN`, `Inf` or `Infinity`.
    pub fn number(&mut self) -> Result<Number, Malformed> {
        let start = self.at;
        let minus = self.eat(b'-');
        let (whole, mut is_real) = match self.peek() {
            b'0' => {
                self.at += 1;
                (0, false)
            }
            b'1'..=b'9' => self.digits(),
            b'N' => return self.word(b"NaN").map(|()| Number::Real(f64::NAN)),
            b'I' => return self.infinity(minus),
            _ => return self.fail(reason::VALUE_INVALID),
        };
        if self.eat(b'.') {
            is_real = true;
            self.some_digits(reason::NUMBER_MISS_FRACTION)?;
        }
        if matches!(self.peek(), b'e' | b'E') {
            is_real = true;
            self.at += 1;
            self.at += usize::from(matches!(self.peek(), b'+' | b'-'));
            self.some_digits(reason::NUMBER_MISS_EXPONENT)?;
        }
        match (is_real, minus) {
            (false, false) => Ok(Number::Unsigned(whole)),
            (false, true) if whole == 0 => Ok(Number::Unsigned(0)),
            (false, true) if whole <= i64::MIN.unsigned_abs() => Ok(Number::Negative((whole as i64).wrapping_neg())),
            _ => self.real(start),
        }
    }

    /// Reads digits as an integer. Returns it, and whether it overflowed.
    fn digits(&mut self) -> (u64, bool) {
        let (mut whole, mut too_large) = (0u64, false);
        while let digit @ b'0'..=b'9' = self.peek() {
            let next = whole.checked_mul(10).and_then(|tens| tens.checked_add(u64::from(digit - b'0')));
            too_large |= next.is_none();
            whole = next.unwrap_or(0);
            self.at += 1;
        }
        (whole, too_large)
    }

    fn some_digits(&mut self, missing: &'static str) -> Result<(), Malformed> {
        if !self.peek().is_ascii_digit() {
            return self.fail(missing);
        }
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
        Ok(())
    }

    fn real(&self, start: usize) -> Result<Number, Malformed> {
        let text = std::str::from_utf8(&self.text[start..self.at]).expect("digits, signs, a point and an e are ASCII");
        let value: f64 = text.parse().expect("JSON's grammar of numbers, just matched, is a part of Rust's");
        if value.is_finite() {
            Ok(Number::Real(value))
        } else {
            Err(Malformed { reason: reason::NUMBER_TOO_BIG, offset: start })
        }
    }

    fn infinity(&mut self, minus: bool) -> Result<Number, Malformed> {
        self.word(b"Inf")?;
        if self.peek() == b'i' {
            self.word(b"inity")?;
        }
        Ok(Number::Real(if minus { f64::NEG_INFINITY } else { f64::INFINITY }))
    }
}
