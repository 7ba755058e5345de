//! What are the tokens of the text form?

use super::{Fault, Positioned};

/// A token and its offset.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token<'a> {
    pub kind: Kind<'a>,
    pub at: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind<'a> {
    Name(&'a str),
    /// Without a sign. `radix` is 8, 10 or 16. The prefix is removed.
    Integer {
        digits: &'a str,
        radix: u32,
    },
    /// In a format that Rust's parser accepts.
    Float(&'a str),
    /// The bytes between the quotation marks, with escapes resolved.
    Text(Vec<u8>),
    Mark(char),
    End,
}

impl Kind<'_> {
    /// The token's text in an error.
    pub fn shown(&self) -> String {
        match self {
            Self::Name(word) | Self::Float(word) => format!("'{word}'"),
            Self::Integer { digits, radix: 16 } => format!("'0x{digits}'"),
            Self::Integer { digits, radix: 8 } => format!("'0{digits}'"),
            Self::Integer { digits, .. } => format!("'{digits}'"),
            Self::Text(bytes) => {
                let text: String = String::from_utf8_lossy(bytes).chars().take(40).collect();
                format!("the string {text:?}")
            }
            Self::Mark(mark) => format!("'{mark}'"),
            Self::End => "the end of the file".to_owned(),
        }
    }
}

/// Splits the text into tokens.
pub(super) struct Lexer<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Lexer<'a> {
    pub fn new(text: &'a [u8]) -> Self {
        // A byte order mark is skipped: the text form is always UTF-8.
        let at = if text.starts_with(b"\xEF\xBB\xBF") { 3 } else { 0 };
        Self { text, at }
    }

    /// The next token. `End` at the end of the text, and after it.
    pub fn next(&mut self) -> Positioned<Token<'a>> {
        self.skip_blank();
        let at = self.at;
        let kind = match self.peek() {
            None => Kind::End,
            Some(byte) if is_name_start(byte) => Kind::Name(self.take_while(is_name_part)),
            Some(b'0'..=b'9') => self.number()?,
            Some(b'.') if self.byte(1).is_some_and(|byte| byte.is_ascii_digit()) => self.number()?,
            Some(quote @ (b'"' | b'\'')) => Kind::Text(self.string(quote)?),
            Some(byte) if byte.is_ascii_graphic() => {
                self.at += 1;
                Kind::Mark(char::from(byte))
            }
            Some(byte) => return Err(self.stray(byte)),
        };
        Ok(Token { kind, at })
    }

    fn stray(&self, byte: u8) -> (Fault, usize) {
        let fault = if byte < 0x80 {
            Fault::new(format!("found the control character 0x{byte:02x}"))
        } else {
            Fault::new("found a character outside ASCII").cure("such characters may stand only in strings and comments")
        };
        fault.at(self.at)
    }

    fn peek(&self) -> Option<u8> {
        self.byte(0)
    }

    fn byte(&self, ahead: usize) -> Option<u8> {
        self.text.get(self.at + ahead).copied()
    }

    fn skip_blank(&mut self) {
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' | b'\n' | b'\r' | 0x0B | 0x0C => self.at += 1,
                // A comment may be in any encoding.
                b'#' => {
                    while self.peek().is_some_and(|byte| byte != b'\n') {
                        self.at += 1;
                    }
                }
                _ => return,
            }
        }
    }

    fn take_while(&mut self, keep: impl Fn(u8) -> bool) -> &'a str {
        let start = self.at;
        while self.peek().is_some_and(&keep) {
            self.at += 1;
        }
        std::str::from_utf8(&self.text[start..self.at]).expect("only ASCII bytes are kept")
    }

    fn number(&mut self) -> Positioned<Kind<'a>> {
        let start = self.at;
        let kind = if self.peek() == Some(b'0') && matches!(self.byte(1), Some(b'x' | b'X')) {
            self.at += 2;
            Kind::Integer { digits: self.take_while(|byte| byte.is_ascii_hexdigit()), radix: 16 }
        } else {
            self.decimal(start)
        };
        let broken = match &kind {
            Kind::Integer { digits, radix } => digits.is_empty() || (*radix == 8 && digits.contains(['8', '9'])),
            Kind::Float(text) => text.parse::<f64>().is_err(),
            _ => false,
        };
        if broken {
            return Err(Fault::new("found a number that is not one").at(start));
        }
        if self.peek().is_some_and(|byte| is_name_part(byte) || byte == b'.') {
            return Err(Fault::new("found a number and a word run together")
                .cure("put a space or a comma between them")
                .at(self.at));
        }
        Ok(kind)
    }

    /// An octal or decimal integer, or a float, which may end in `f`.
    fn decimal(&mut self, start: usize) -> Kind<'a> {
        let whole = self.take_while(|byte| byte.is_ascii_digit());
        let mut float = false;
        if self.peek() == Some(b'.') {
            float = true;
            self.at += 1;
            self.take_while(|byte| byte.is_ascii_digit());
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            float = true;
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.take_while(|byte| byte.is_ascii_digit());
        }
        let end = self.at;
        if matches!(self.peek(), Some(b'f' | b'F')) {
            float = true;
            self.at += 1;
        }
        if float {
            let text = std::str::from_utf8(&self.text[start..end]).expect("only ASCII was passed");
            return Kind::Float(text);
        }
        match whole.strip_prefix('0') {
            Some(digits) if !digits.is_empty() => Kind::Integer { digits, radix: 8 },
            _ => Kind::Integer { digits: whole, radix: 10 },
        }
    }

    fn string(&mut self, quote: u8) -> Positioned<Vec<u8>> {
        let start = self.at;
        self.at += 1;
        let mut bytes = Vec::new();
        loop {
            match self.peek() {
                None | Some(b'\n') => {
                    return Err(Fault::new("found a string that does not end on its line")
                        .cure(format!("close it with {}", char::from(quote)))
                        .at(start));
                }
                Some(byte) if byte == quote => {
                    self.at += 1;
                    return Ok(bytes);
                }
                Some(b'\\') => self.escape(&mut bytes)?,
                Some(byte) => {
                    bytes.push(byte);
                    self.at += 1;
                }
            }
        }
    }

    fn escape(&mut self, bytes: &mut Vec<u8>) -> Positioned<()> {
        let start = self.at;
        self.at += 1;
        let plain = match self.peek() {
            Some(b'a') => 0x07,
            Some(b'b') => 0x08,
            Some(b'f') => 0x0C,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'v') => 0x0B,
            Some(same @ (b'\\' | b'?' | b'\'' | b'"')) => same,
            Some(b'0'..=b'7') => {
                let value = self.digits(3, 8);
                // Three octal digits can be up to 511. The ninth bit is dropped, as in C++.
                bytes.push(value.map_or(0, |value| value as u8));
                return Ok(());
            }
            Some(kind @ (b'x' | b'X' | b'u' | b'U')) => {
                self.at += 1;
                let value = match kind {
                    b'u' => self.exactly(4).map(|value| self.with_low_surrogate(value)),
                    b'U' => self.exactly(8),
                    _ => self.digits(2, 16),
                };
                return match value {
                    Some(value) if matches!(kind, b'x' | b'X') => {
                        bytes.push(value as u8);
                        Ok(())
                    }
                    Some(value) if char::from_u32(value).is_some() => {
                        let character = char::from_u32(value).unwrap_or_default();
                        bytes.extend(character.encode_utf8(&mut [0; 4]).as_bytes());
                        Ok(())
                    }
                    _ => Err(broken_escape(start)),
                };
            }
            _ => return Err(broken_escape(start)),
        };
        bytes.push(plain);
        self.at += 1;
        Ok(())
    }

    /// The character of a pair of escapes if `value` is the high surrogate of one, otherwise `value`.
    fn with_low_surrogate(&mut self, value: u32) -> u32 {
        if !matches!(value, 0xD800..=0xDBFF) || self.peek() != Some(b'\\') || self.byte(1) != Some(b'u') {
            return value;
        }
        self.at += 2;
        match self.exactly(4) {
            Some(low @ 0xDC00..=0xDFFF) => 0x1_0000 + ((value - 0xD800) << 10) + (low - 0xDC00),
            _ => value,
        }
    }

    /// Reads one to `most` digits.
    fn digits(&mut self, most: usize, radix: u32) -> Option<u32> {
        let mut value = None;
        for _ in 0..most {
            let Some(digit) = self.peek().and_then(|byte| char::from(byte).to_digit(radix)) else {
                break;
            };
            value = Some(value.unwrap_or(0) * radix + digit);
            self.at += 1;
        }
        value
    }

    /// Reads exactly `count` hexadecimal digits.
    fn exactly(&mut self, count: usize) -> Option<u32> {
        let start = self.at;
        let value = self.digits(count, 16)?;
        (self.at - start == count).then_some(value)
    }
}

fn broken_escape(at: usize) -> (Fault, usize) {
    Fault::new("found an escape that means nothing in a string").cure("write '\\\\' for a backslash").at(at)
}

fn is_name_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_'
}

fn is_name_part(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}
