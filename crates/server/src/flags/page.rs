//! Is docs/flags.md what the tables say?
//!
//! `NERITE_WRITE_FLAGS_PAGE=1 cargo test -p nerite-server flags::page` writes the page.

use std::fmt::Write;
use std::path::Path;

use super::{FLAGS, Flag, Honour, Takes};
use crate::settings::backends::{BackendSetting, GROUPS, OF_ALL};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/flags.md");

const HEAD: &str = "# Flags of `nerite serve`

<!-- Written by crates/server/src/flags/page.rs from the tables of the program; a test fails if it is not current. -->

This page lists every flag of `nerite serve` and every setting of the built-in backends, for operators who look one up.

Names and values are those of `tritonserver`, so its command lines work. Under the name `tritonserver`, the binary takes flags without `serve`.
`--flag=value` and `--flag value` both work, and so does an unambiguous beginning of a name. Of a flag that is given twice, the last value counts.
Every flag is also a key of a file of settings and a variable of the environment: [Settings](settings.md).

| of | meaning |
|---|---|
| Triton | a flag of Triton's, with the same effect |
| nerite | Triton does not have this flag |
| ignored | a flag of Triton's for a part that nerite does not have. The log has a warning |
";

const BACKENDS: &str = "
## Settings of backends

`--backend-config=<backend>,<setting>=<value>` sets one of these. The log has a warning for a setting that the backend does not have.
Compiled backends get all of their settings. They also have `isolated` and the settings of the sandbox ([Compiled backends](backends.md)).
";

fn page() -> String {
    let mut text = HEAD.to_owned();
    let mut group = "";
    for flag in FLAGS {
        if flag.group != group {
            group = flag.group;
            let _ = write!(text, "\n## {group}\n\n| flag | value | of | meaning |\n|---|---|---|---|\n");
        }
        let _ = writeln!(text, "{}", row(flag));
    }
    text.push_str(BACKENDS);
    let mut table = |title: &str, settings: &[BackendSetting]| {
        let _ = write!(text, "\n### {title}\n\n| setting | of | meaning |\n|---|---|---|\n");
        for setting in settings {
            let _ = writeln!(text, "| `{}` | {} | {} |", setting.name, of(setting.honour), cell(setting.about));
        }
    };
    for group in GROUPS {
        let names: Vec<String> = group.backends.iter().map(|name| format!("`{name}`")).collect();
        table(&names.join(" and "), group.settings);
    }
    table("All backends", OF_ALL);
    text
}

fn row(flag: &Flag) -> String {
    let value = match flag.takes {
        Takes::Nothing => "–".to_owned(),
        Takes::Value(value) => value.replace(['<', '>'], ""),
    };
    format!("| `--{}` | {value} | {} | {} |", flag.name, of(flag.honour), cell(flag.about))
}

fn of(honour: Honour) -> &'static str {
    match honour {
        Honour::Yes => "Triton",
        Honour::Own => "nerite",
        Honour::Accepted => "ignored",
    }
}

/// A text as a cell of a table: words with `<`, which would be tags, are code, and no `|` ends the cell.
fn cell(about: &str) -> String {
    let words = about.split(' ').map(|word| {
        let (bare, end) = word.split_at(word.trim_end_matches(['.', ',', ';', ':']).len());
        if bare.contains('<') { format!("`{bare}`{end}") } else { word.to_owned() }
    });
    words.collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[test]
fn the_page_of_flags_is_current() {
    let page = page();
    if std::env::var_os("NERITE_WRITE_FLAGS_PAGE").is_some() {
        std::fs::write(PAGE, &page).expect("the page can be written");
    }
    let found = std::fs::read_to_string(Path::new(PAGE)).expect("the page is there");
    assert!(
        found == page,
        "docs/flags.md is not current; `NERITE_WRITE_FLAGS_PAGE=1 cargo test -p nerite-server flags::page` writes it"
    );
}
