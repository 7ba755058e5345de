//! What remains of a source file without its comments and literals?

pub mod python;

/// The text with the contents of comments, strings and characters replaced by spaces. Lines and columns stay the same.
pub fn of(text: &str) -> String {
    let mut reader = Reader { rest: text, out: String::with_capacity(text.len()) };
    while let Some(next) = reader.rest.chars().next() {
        reader.step(next);
    }
    reader.out
}

struct Reader<'a> {
    rest: &'a str,
    out: String,
}

impl Reader<'_> {
    fn step(&mut self, next: char) {
        if self.rest.starts_with("//") {
            self.blank(self.rest.find('\n').unwrap_or(self.rest.len()));
        } else if self.rest.starts_with("/*") {
            self.blank(comment_len(self.rest));
        } else if let Some(len) = raw_string_len(self.rest).filter(|_| !self.inside_word()) {
            self.blank(len);
        } else if next == '"' {
            self.blank(quoted_len(self.rest, '"'));
        } else if next == '\'' && is_char(self.rest) {
            self.blank(quoted_len(self.rest, '\''));
        } else {
            self.out.push(next);
            self.rest = &self.rest[next.len_utf8()..];
        }
    }

    /// Whether the last character belongs to a longer name, as the `r` of `for` does.
    fn inside_word(&self) -> bool {
        self.out.ends_with(|last: char| last.is_alphanumeric() || last == '_')
    }

    fn blank(&mut self, len: usize) {
        let (gone, rest) = self.rest.split_at(len);
        self.out.extend(gone.chars().map(|gone| if gone == '\n' { '\n' } else { ' ' }));
        self.rest = rest;
    }
}

/// The bytes of a comment, which may contain nested ones.
fn comment_len(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// Bytes of a raw string, if one begins here.
fn raw_string_len(text: &str) -> Option<usize> {
    let body = ["r", "br", "cr"].iter().find_map(|start| text.strip_prefix(start))?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    body[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let start = text.len() - body.len() + hashes + 1;
    Some(text[start..].find(&end).map_or(text.len(), |found| start + found + end.len()))
}

/// Bytes of a literal with escapes, both quotes included.
fn quoted_len(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, next) in text.char_indices().skip(1) {
        if escaped {
            escaped = false;
        } else if next == '\\' {
            escaped = true;
        } else if next == quote {
            return at + quote.len_utf8();
        }
    }
    text.len()
}

/// Whether a quote begins a character rather than a lifetime.
fn is_char(text: &str) -> bool {
    let mut chars = text.chars().skip(1);
    match (chars.next(), chars.next()) {
        (Some('\\'), _) => true,
        (Some(_), second) => second == Some('\''),
        (None, _) => false,
    }
}

#[cfg(test)]
mod tests {
    #[track_caller]
    fn check(text: &str, expect: &str) {
        assert_eq!(super::of(text), expect);
    }

    #[test]
    fn comments_and_literals_become_spaces() {
        check("a // b {\nc", "a       \nc");
        check("a /* b /* { */ } */ c", "a                   c");
        check(r#"f("a\"{")"#, "f(      )");
        check("f('{', '\\'', '\\u{7d}')", "f(   ,     ,         )");
        check("r#\"{ \"quoted\" }\"# }", "                  }");
        check("br\"{\" }", "      }");
        check("\"a\nb\"", "  \n  ");
    }

    #[test]
    fn text_that_only_looks_like_a_literal_stays() {
        check("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)");
        check("for r in x {}", "for r in x {}");
        check("let r#type = 1;", "let r#type = 1;");
        check("loop { break 'outer; }", "loop { break 'outer; }");
    }

    #[test]
    fn an_open_end_is_no_fault() {
        check("\"abc", "    ");
        check("/* abc", "      ");
        check("r#\"abc", "      ");
        check("'", "'");
    }
}
