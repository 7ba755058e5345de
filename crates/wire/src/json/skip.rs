//! How is a value skipped at any nesting depth?

use super::fault::{Malformed, reason};
use super::lex::{Kind, Reader};

impl Reader<'_> {
    /// Skips the next value and checks its syntax. Each level of nesting takes one byte of heap and no stack.
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

    /// Skips an opening bracket, and `closer` if it is next. Returns whether it was.
    pub fn open_is_empty(&mut self, closer: u8) -> bool {
        self.eat(self.peek());
        self.space();
        self.eat(closer)
    }

    /// Call this after a member or an element. It skips a comma and returns true, or skips `closer` and returns false.
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

    /// Call this after a value. It skips the closing brackets that follow. Returns whether the outermost value is complete. Otherwise the reader is
    /// at the next value.
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
