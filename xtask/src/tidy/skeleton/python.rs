//! What remains of a Python file without its comments and strings?

/// The text with the contents of comments and strings replaced by spaces, except what stands between backquotes there: names of the code. Lines and
/// columns stay the same. The expressions within an f-string count as its contents.
pub fn of(text: &str) -> String {
    let (mut rest, mut out) = (text, String::with_capacity(text.len()));
    while let Some(next) = rest.chars().next() {
        let blanked = match next {
            '#' => rest.find('\n').unwrap_or(rest.len()),
            '"' | '\'' => string_len(rest, next),
            _ => 0,
        };
        let (gone, left) = rest.split_at(blanked.max(next.len_utf8()));
        if blanked > 0 {
            blank(gone, &mut out);
        } else {
            out.push(next);
        }
        rest = left;
    }
    out
}

/// Bytes of the string that begins with this quote. Both quotes, single or triple, are included.
fn string_len(text: &str, quote: char) -> usize {
    let triple = quote.to_string().repeat(3);
    let (end, is_triple) = if text.starts_with(&triple) { (triple, true) } else { (quote.to_string(), false) };
    let mut at = end.len();
    while let Some(next) = text[at..].chars().next() {
        if text[at..].starts_with(&end) {
            return at + end.len();
        }
        // The line ends the string if its end is missing.
        if next == '\n' && !is_triple {
            return at;
        }
        at += next.len_utf8();
        if next == '\\' {
            at += text[at..].chars().next().map_or(0, char::len_utf8);
        }
    }
    text.len()
}

/// Adds a space for each character, but keeps lines, and text that follows one or more backquotes until the next ones or the end of the line.
fn blank(text: &str, out: &mut String) {
    let (mut is_quoted, mut last) = (false, ' ');
    for next in text.chars() {
        is_quoted = next != '\n' && is_quoted != (next == '`' && last != '`');
        out.push(if next == '\n' || is_quoted && next != '`' { next } else { ' ' });
        last = next;
    }
}

#[cfg(test)]
mod tests {
    #[track_caller]
    fn check(text: &str, expect: &str) {
        assert_eq!(super::of(text), expect);
    }

    #[test]
    fn comments_and_strings_become_spaces() {
        check("a # b's\nc", "a      \nc");
        check("f('{', \"it's\", 'a\\'b')", "f(   ,       ,       )");
        check("'' + \"\"", "   +   ");
        check("'''a\n\"b\" '' c''' + d", "    \n            + d");
        check("\"\"\"a \\\"\"\" b\"\"\" + c", "               + c");
        check("f'{a}' + r'\\\\' + b", "f      + r     + b");
    }

    #[test]
    fn names_between_backquotes_stay() {
        check("# the `name` of one\na", "       name        \na");
        check("'''``a`` is\nnot `b` c'''", "     a     \n     b      ");
        check("x = '`a\\nb`'", "x =   a\\nb  ");
    }

    #[test]
    fn an_open_end_is_no_fault() {
        check("'abc\nd", "    \nd");
        check("'''abc\n", "      \n");
        check("'\\", "  ");
    }
}
