//! How is a value passed over, however deep it nests?

use super::fault::{Malformed, reason};
use super::lex::{Kind, Reader};

impl Reader<'_> {
    /// Goes past the next value, checking its syntax. Nesting costs a byte of heap a level and no stack.
    pub fn skip(&mut self) -> Result<(), Malformed> {
        let mut closers: Vec<u8> = Vec::new();
        loop {
            match self.kind() {
                Kind::Object => {
                    if !self.open_is_empty(b'}') {
                        self.key()?;
                        closers.push(b'}');
                        continue;
                    }
                }
                Kind::Array => {
                    if !self.open_is_empty(b']') {
                        closers.push(b']');
                        continue;
                    }
                }
                Kind::String => drop(self.raw_string()?),
                Kind::Bool => _ = self.raw_bool()?,
                Kind::Null => self.word(b"null")?,
                Kind::Number => _ = self.number()?,
            }
            if self.leave(&mut closers)? {
                return Ok(());
            }
        }
    }

    /// Goes past an opening bracket and, if it is the next thing, past `closer`; whether it was.
    pub fn open_is_empty(&mut self, closer: u8) -> bool {
        self.eat(self.peek());
        self.space();
        self.eat(closer)
    }

    /// After a member or element: past the comma (true) or past `closer` (false).
    pub fn follows(&mut self, closer: u8) -> Result<bool, Malformed> {
        self.space();
        if self.eat(b',') {
            self.space();
            return Ok(true);
        }
        if self.eat(closer) {
            return Ok(false);
        }
        self.fail(if closer == b'}' { reason::OBJECT_MISS_COMMA } else { reason::ARRAY_MISS_COMMA })
    }

    /// After a value: closes what ends here. Whether that was everything; if not, the reader is at the next value.
    fn leave(&mut self, closers: &mut Vec<u8>) -> Result<bool, Malformed> {
        while let Some(&closer) = closers.last() {
            if self.follows(closer)? {
                if closer == b'}' {
                    self.key()?;
                }
                return Ok(false);
            }
            closers.pop();
        }
        Ok(true)
    }
}
