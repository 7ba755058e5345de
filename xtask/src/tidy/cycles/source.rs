//! Which paths does a source file use outside its tests, and what do its imports mean?

use std::collections::BTreeMap;

/// Keywords that begin an item, which ends with its body or a semicolon. Anything else can end with a comma as well.
const ITEMS: [&str; 14] = [
    "async",
    "const",
    "enum",
    "extern",
    "fn",
    "impl",
    "macro_rules",
    "mod",
    "pub",
    "static",
    "struct",
    "trait",
    "type",
    "use",
];

/// The uses of other modules in one file.
#[derive(Debug, Default)]
pub struct Source {
    /// Imported names, each with its path. Re-exports are included.
    pub names: BTreeMap<String, Vec<String>>,
    /// All paths, without re-exports.
    pub paths: Vec<Used>,
    /// Modules that exist in tests only.
    pub tests: Vec<String>,
}

/// A path and its line.
#[derive(Debug, PartialEq, Eq)]
pub struct Used {
    pub path: Vec<String>,
    pub line: usize,
    /// Whether it is an import. An import of a module is not a use yet.
    pub is_import: bool,
}

impl Source {
    /// Reads a skeleton.
    pub fn read(skeleton: &str) -> Source {
        let mut reader =
            Reader { words: words(skeleton), at: 0, depth: 0, inline: Vec::new(), source: Source::default() };
        while reader.at < reader.words.len() {
            reader.step();
        }
        reader.source
    }
}

struct Reader<'a> {
    /// Tokens, with their lines.
    words: Vec<(&'a str, usize)>,
    at: usize,
    /// The number of open braces.
    depth: usize,
    /// The depths at which inline modules opened.
    inline: Vec<usize>,
    source: Source,
}

impl<'a> Reader<'a> {
    fn word(&self, ahead: usize) -> &'a str {
        self.words.get(self.at + ahead).map_or("", |(word, _)| word)
    }

    fn step(&mut self) {
        match self.word(0) {
            "#" if self.is_test() => self.pass_over_item(),
            "#" => self.pass_over_attribute(),
            "use" => self.read_import(),
            "mod" if self.word(2) == "{" => {
                self.inline.push(self.depth);
                self.at += 2;
            }
            "{" => (self.depth, self.at) = (self.depth + 1, self.at + 1),
            "}" => {
                self.depth = self.depth.saturating_sub(1);
                self.inline.pop_if(|opened| *opened == self.depth);
                self.at += 1;
            }
            word if is_name(word) && self.word(1) == "::" => self.read_path(),
            // The rest of a path that does not begin with a name, such as `<T as Trait>::name`.
            "::" => self.at += if is_name(self.word(1)) { 2 } else { 1 },
            _ => self.at += 1,
        }
    }

    /// Whether an attribute limits the next item to tests.
    fn is_test(&self) -> bool {
        let rest: Vec<&str> = (1..7).map(|ahead| self.word(ahead)).collect();
        matches!(rest[..], ["[", "cfg", "(", "test", ")", _] | ["[", "cfg", "(", "all", "(", "test"])
    }

    fn pass_over_attribute(&mut self) {
        while !matches!(self.word(0), "" | "[") {
            self.at += 1;
        }
        self.pass_over_brackets();
    }

    /// Skips a bracket and its contents.
    fn pass_over_brackets(&mut self) {
        let mut open = 0_usize;
        while self.at < self.words.len() {
            match self.word(0) {
                "(" | "[" | "{" => open += 1,
                ")" | "]" | "}" => open = open.saturating_sub(1),
                _ => {}
            }
            self.at += 1;
            if open == 0 {
                return;
            }
        }
    }

    /// Skips attributes and their item.
    fn pass_over_item(&mut self) {
        while self.word(0) == "#" {
            self.pass_over_attribute();
        }
        let is_item = ITEMS.contains(&self.word(0));
        let mut last = "";
        while self.at < self.words.len() {
            match self.word(0) {
                "mod" => self.source.tests.push(self.word(1).to_owned()),
                ";" => return self.at += 1,
                "," if !is_item => return self.at += 1,
                ")" | "]" | "}" => return,
                "{" if last != "::" => return self.pass_over_brackets(),
                _ => {}
            }
            last = self.word(0);
            if matches!(last, "(" | "[" | "{") {
                self.pass_over_brackets();
            } else {
                self.at += 1;
            }
        }
    }

    fn read_import(&mut self) {
        let before = self.at.checked_sub(1).map_or("", |before| self.words[before].0);
        let is_passed_on = before == "pub" || (before == ")" && self.visibility_ends(self.at - 1));
        self.at += 1;
        // `use<'a>` in a type is no import.
        if self.word(0) != "<" {
            self.read_tree(&[], is_passed_on);
        }
    }

    /// Whether `pub(…)` ends with the bracket at `end`.
    fn visibility_ends(&self, end: usize) -> bool {
        let open = self.words[..end].iter().rposition(|(word, _)| *word == "(");
        open.and_then(|open| open.checked_sub(1)).is_some_and(|before| self.words[before].0 == "pub")
    }

    /// Reads one path of an import, or several with a common prefix.
    fn read_tree(&mut self, start: &[&'a str], is_passed_on: bool) {
        let line = self.words.get(self.at).map_or(0, |(_, line)| *line);
        let mut path = start.to_vec();
        let mut name = path.last().copied().unwrap_or_default();
        loop {
            match self.word(0) {
                "{" => {
                    self.at += 1;
                    while !matches!(self.word(0), "" | "}") {
                        self.read_tree(&path, is_passed_on);
                        self.at += usize::from(self.word(0) == ",");
                    }
                    self.at += 1;
                    return;
                }
                "self" if !path.is_empty() => {}
                "*" => name = "",
                "as" => {
                    self.at += 1;
                    name = self.word(0);
                }
                "::" => {}
                word if is_name(word) => {
                    path.push(word);
                    name = word;
                }
                _ => break,
            }
            self.at += 1;
        }
        let is_glob = name.is_empty();
        let Some(path) = self.seen_from_file(path) else { return };
        if !is_glob {
            self.source.names.insert(name.to_owned(), path.clone());
        }
        if !is_passed_on {
            self.source.paths.push(Used { path, line, is_import: !is_glob });
        }
    }

    fn read_path(&mut self) {
        let line = self.words[self.at].1;
        let mut path = vec![self.word(0)];
        self.at += 1;
        while self.word(0) == "::" && is_name(self.word(1)) {
            path.push(self.word(1));
            self.at += 2;
        }
        if let Some(path) = self.seen_from_file(path) {
            self.source.paths.push(Used { path, line, is_import: false });
        }
    }

    /// The path relative to the file's module. `None` if it stays within an inline module.
    fn seen_from_file(&self, mut path: Vec<&str>) -> Option<Vec<String>> {
        for _ in &self.inline {
            match *path.first()? {
                "self" => return None,
                "super" if path.get(1).is_some_and(|next| *next == "super") => path.remove(0),
                "super" => std::mem::replace(&mut path[0], "self"),
                _ => break,
            };
        }
        Some(path.into_iter().map(str::to_owned).collect())
    }
}

fn is_name(word: &str) -> bool {
    word.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Splits a skeleton into names, `::` and single characters, each with its line.
fn words(skeleton: &str) -> Vec<(&str, usize)> {
    let mut words = Vec::new();
    for (index, line) in skeleton.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let is_part = |next: char| next.is_alphanumeric() || next == '_';
            let len = match first {
                _ if is_part(first) => rest.find(|next| !is_part(next)).unwrap_or(rest.len()),
                ':' if rest.starts_with("::") => 2,
                _ => first.len_utf8(),
            };
            let (word, after) = rest.split_at(len);
            words.push((word, index + 1));
            rest = after.trim_start();
        }
    }
    words
}
