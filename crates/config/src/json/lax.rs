//! What is JSON that protobuf's reader accepts and the standard does not, as standard JSON?
//!
//! That reader takes strings in single quotes, control characters and unknown escapes in strings, keys without quotes, numbers without a
//! digit behind the point, and a comma after the last member.

use std::iter::Peekable;
use std::str::CharIndices;

/// The same value as standard JSON. What is no JSON by these rules either is left as it is.
pub(super) fn standard(lax: &str) -> String {
    let mut out = String::with_capacity(lax.len() + 16);
    let mut rest = lax.char_indices().peekable();
    while let Some((at, first)) = rest.next() {
        match first {
            '"' | '\'' => string(first, &mut rest, &mut out),
            '0'..='9' | '-' | '+' | '.' => {
                let start = out.len();
                out.push(first);
                take_while(&mut rest, &mut out, |one| one.is_ascii_alphanumeric() || matches!(one, '+' | '-' | '.'));
                if let Some(point) = out[start..].find('.').map(|at| start + at)
                    && !out[point + 1..].starts_with(|next: char| next.is_ascii_digit())
                {
                    out.insert(point + 1, '0');
                }
            }
            _ if is_key_start(first) => {
                let start = out.len();
                out.push(first);
                take_while(&mut rest, &mut out, |one| is_key_start(one) || one.is_ascii_digit());
                let is_word = matches!(&out[start..], "true" | "false" | "null");
                if !is_word && next_mark(lax, &mut rest) == Some(':') {
                    out.insert(start, '"');
                    out.push('"');
                }
            }
            ',' if is_last(lax, at, &mut rest) => {}
            other => out.push(other),
        }
    }
    out
}

/// Copies a string behind its first quotation mark.
fn string(quote: char, rest: &mut Peekable<CharIndices<'_>>, out: &mut String) {
    out.push('"');
    while let Some((_, one)) = rest.next() {
        match one {
            _ if one == quote => break,
            '"' => out.push_str("\\\""),
            '\\' => match rest.next() {
                Some((_, escaped @ ('"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' | 'u'))) => {
                    out.extend(['\\', escaped]);
                }
                Some((_, 'v')) => character('\u{b}', out),
                Some((_, other)) => character(other, out),
                None => out.push('\\'),
            },
            other => character(other, out),
        }
    }
    out.push('"');
}

/// Adds a character of a string.
fn character(one: char, out: &mut String) {
    if one.is_ascii_control() {
        out.push_str(&format!("\\u{:04x}", u32::from(one)));
    } else {
        out.push(one);
    }
}

fn take_while(rest: &mut Peekable<CharIndices<'_>>, out: &mut String, keep: impl Fn(char) -> bool) {
    while let Some((_, one)) = rest.next_if(|(_, one)| keep(*one)) {
        out.push(one);
    }
}

fn is_key_start(one: char) -> bool {
    one.is_ascii_alphabetic() || matches!(one, '_' | '$')
}

/// The next character that is no blank.
fn next_mark(lax: &str, rest: &mut Peekable<CharIndices<'_>>) -> Option<char> {
    let at = rest.peek()?.0;
    lax[at..].trim_start().chars().next()
}

/// Whether the comma there comes after a member and is the last one of its list or object.
fn is_last(lax: &str, at: usize, rest: &mut Peekable<CharIndices<'_>>) -> bool {
    let after_member = !lax[..at].trim_end().ends_with(['[', '{', ',', ':']);
    after_member && at > 0 && matches!(next_mark(lax, rest), Some(']' | '}'))
}
