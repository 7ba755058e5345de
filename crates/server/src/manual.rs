//! What does the manual page say?
//!
//! Made from the usages of all commands and the table of flags, in the form that man(7) describes.

use std::process::ExitCode;

use crate::flags::{FLAGS, Takes};
use crate::{HELP, config, demo, doctor, drain, model, ready, shm, top};

const USAGE: &str = "Usage: nerite man\n\nPrints the manual page; `nerite man | man -l -` shows it.\n";

/// `nerite man`: the page on stdout.
pub fn main(words: &[String]) -> ExitCode {
    if let [word] = words
        && matches!(word.as_str(), "-h" | "--help")
    {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    if !words.is_empty() {
        eprintln!("nerite man: takes no words; `nerite man | man -l -` shows the page");
        return ExitCode::from(2);
    }
    print!("{}", page());
    ExitCode::SUCCESS
}

const ENVIRONMENT: &[(&str, &str)] = &[
    (
        "NERITE_*",
        "Settings of \\fBnerite serve\\fR: NERITE_HTTP_PORT is \\fB\\-\\-http\\-port\\fR. Flags that may be given several times have one value a line.",
    ),
    (
        "NERITE_TOKEN",
        "The secret of the token that \\fBnerite top\\fR, \\fBready\\fR and \\fBshm\\fR bring, to whatever server they are told to ask.",
    ),
    ("SSL_CERT_FILE", "The certificates that they believe at addresses of https://, without \\fB\\-\\-cacert\\fR."),
    ("NERITE_EXAMPLES", "The folder of examples that \\fBnerite demo\\fR serves."),
    ("ORT_DYLIB_PATH", "The library of ONNX Runtime, without \\fB\\-\\-onnxruntime\\-library\\fR."),
];

fn page() -> String {
    let mut page = format!(
        ".\\\" Made by `nerite man`.\n.TH NERITE 1 \"\" \"nerite {}\" \"User Commands\"\n.SH NAME\nnerite \\- inference server \
         with zero-copy shared memory, compatible with NVIDIA Triton\n.SH DESCRIPTION\n",
        env!("CARGO_PKG_VERSION")
    );
    verbatim(&mut page, HELP);
    page.push_str(".SH FLAGS OF NERITE SERVE\n");
    let mut group = "";
    for flag in FLAGS {
        if flag.group != group {
            group = flag.group;
            page.push_str(&format!(".SS {}\n", escaped(group)));
        }
        let value = match flag.takes {
            Takes::Nothing => String::new(),
            Takes::Value(kind) => format!("={}", value(kind)),
        };
        page.push_str(&format!(".TP\n\\fB\\-\\-{}\\fR{value}\n{}\n", escaped(flag.name), escaped(flag.about)));
    }
    let bench = nerite_bench::usage();
    for (name, usage) in [
        ("SHM", shm::USAGE),
        ("DOCTOR", doctor::USAGE),
        ("DEMO", demo::USAGE),
        ("CONFIG", config::USAGE),
        ("DRAIN", drain::USAGE),
        ("READY", ready::USAGE),
        ("TOP", top::USAGE),
        ("BENCH", &bench),
        ("MODEL", model::USAGE),
    ] {
        page.push_str(&format!(".SH NERITE {name}\n"));
        verbatim(&mut page, usage);
    }
    page.push_str(".SH ENVIRONMENT\n");
    for (name, about) in ENVIRONMENT {
        page.push_str(&format!(".TP\n.B {}\n{about}\n", escaped(name)));
    }
    page.push_str(
        ".SH EXIT STATUS\n0 where all went well: the server let all requests end that were in flight. 1 after a failure, 2 for a command line \
         that was not understood.\n.SH SEE ALSO\n.BR systemctl (1)\n",
    );
    page
}

/// A value's form: the names between angle brackets in italics, and without the brackets.
fn value(form: &str) -> String {
    escaped(form).replace('<', "\\fI").replace('>', "\\fR")
}

/// Lines as they are.
fn verbatim(page: &mut String, text: &str) {
    page.push_str(".nf\n");
    for line in text.lines() {
        page.push_str(&escaped(line));
        page.push('\n');
    }
    page.push_str(".fi\n");
}

/// Text that a formatter takes for text: no escapes, no requests at the beginning of a line, ASCII dashes.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('…', "...");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_is_on_the_page_and_no_line_is_a_request_by_chance() {
        let page = page();
        for flag in FLAGS {
            assert!(page.contains(&format!("\\fB\\-\\-{}\\fR", flag.name.replace('-', "\\-"))), "--{}", flag.name);
        }
        let known = [".\\\"", ".TH", ".SH", ".SS", ".TP", ".B ", ".BR", ".nf", ".fi"];
        for line in page.lines().filter(|line| line.starts_with(['.', '\''])) {
            assert!(known.iter().any(|request| line.starts_with(request)), "{line}");
        }
    }

    #[test]
    fn each_name_of_a_value_is_in_italics() {
        assert_eq!(value("<integer>"), "\\fIinteger\\fR");
        assert_eq!(value("<string>:<string>=<string>"), "\\fIstring\\fR:\\fIstring\\fR=\\fIstring\\fR");
        for line in page().lines().filter(|line| line.starts_with("\\fB\\-\\-")) {
            assert!(!line.contains(['<', '>']), "{line}");
        }
    }

    #[test]
    fn text_stays_text() {
        assert_eq!(escaped("'none' or a-b"), "\\&'none' or a\\-b");
        assert_eq!(escaped("a\\b"), "a\\eb");
    }
}
