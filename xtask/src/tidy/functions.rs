//! Is every function short enough?

use super::Finding;

/// The most lines of a function, from its `fn` to its last brace.
const LINES_MAX: usize = 70;

/// Checks the functions of one file.
pub fn check(path: &str, skeleton: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for function in functions(skeleton) {
        if function.lines > LINES_MAX {
            let text = format!("`{}` has {} lines; a function has {LINES_MAX} at most", function.name, function.lines);
            findings.push(Finding::new("function-length", path, function.line, text));
        }
    }
    findings
}

#[derive(Debug, PartialEq, Eq)]
struct Function<'a> {
    name: &'a str,
    line: usize,
    lines: usize,
}

/// All functions with a body, including nested ones.
fn functions(skeleton: &str) -> Vec<Function<'_>> {
    let mut functions = Vec::new();
    let mut from = 0;
    while let Some(found) = skeleton[from..].find("fn ") {
        let at = from + found;
        from = at + 3;
        let inside_word = skeleton[..at].ends_with(|last: char| last.is_alphanumeric() || last == '_');
        let rest = skeleton[from..].trim_start();
        let name = &rest[..rest.find(|next: char| !next.is_alphanumeric() && next != '_').unwrap_or(rest.len())];
        if inside_word || name.is_empty() {
            continue;
        }
        if let Some(end) = body_end(&skeleton[at..]) {
            let line = skeleton[..at].matches('\n').count() + 1;
            let lines = skeleton[at..at + end].matches('\n').count() + 1;
            functions.push(Function { name, line, lines });
        }
    }
    functions
}

/// The end of the body of the function that begins here. `None` if it has no body.
fn body_end(text: &str) -> Option<usize> {
    let (mut brackets, mut braces) = (0_usize, 0_usize);
    for (at, next) in text.char_indices() {
        match next {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets = brackets.saturating_sub(1),
            ';' if brackets == 0 && braces == 0 => return None,
            '{' => braces += 1,
            '}' => {
                braces = braces.checked_sub(1)?;
                if braces == 0 && brackets == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_functions(text: &str, expect: &[(&str, usize, usize)]) {
        let functions = functions(text);
        let found: Vec<_> = functions.iter().map(|function| (function.name, function.line, function.lines)).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn functions_are_found_with_their_lines() {
        check_functions("fn a() {}", &[("a", 1, 1)]);
        check_functions("\npub fn a(\n  x: [u8; 3],\n) -> u8 {\n  { 1 }\n}\n", &[("a", 2, 5)]);
        check_functions("fn a() {\n  fn b() {\n  }\n}", &[("a", 1, 4), ("b", 2, 2)]);
    }

    #[test]
    fn functions_without_a_body_are_skipped() {
        check_functions("trait T { fn a(&self) -> [u8; 2]; fn b(&self) {} }", &[("b", 1, 1)]);
        check_functions("let f: fn(u8) -> u8 = g;", &[]);
        check_functions("macro! { fn_name }", &[]);
        check_functions("fn open() {", &[]);
    }

    #[test]
    fn long_functions_are_found() {
        let long = |lines: usize| format!("fn a() {{{}}}", "\n".repeat(lines - 1));
        assert_eq!(check("a.rs", &long(70)), []);
        assert_eq!(check("a.rs", &long(71))[0].text, "`a` has 71 lines; a function has 70 at most");
    }
}
