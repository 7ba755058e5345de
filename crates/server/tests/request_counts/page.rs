//! How is docs/request-counts.md read, compared and written?

use std::fs;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/request-counts.md");
/// The columns that name a kind of request.
const NAMES: usize = 3;

/// The lines of the page, and what differs from them.
pub struct Page {
    lines: Vec<String>,
    differences: Vec<String>,
}

/// A column with counts.
pub struct Column {
    pub name: &'static str,
    /// The share by which a count may differ.
    pub tolerance: f64,
}

impl Page {
    pub fn read() -> Page {
        let lines = fs::read_to_string(PAGE).unwrap().lines().map(str::to_owned).collect();
        Page { lines, differences: Vec::new() }
    }

    /// Whether the page has these counts.
    pub fn has(&self, kind: &str, columns: &[Column], found: &[f64]) -> bool {
        columns.iter().zip(found).all(|(column, count)| self.has_one(kind, column, *count))
    }

    /// Notes each count that the page does not have.
    pub fn compare(&mut self, kind: &str, columns: &[Column], found: &[f64]) {
        println!("{kind}: {found:?}");
        for (column, count) in columns.iter().zip(found) {
            if self.has_one(kind, column, *count) {
                continue;
            }
            let (name, old) = (column.name, self.count(kind, column.name));
            let old = old.map_or("nothing".to_owned(), |old| old.to_string());
            self.differences.push(format!("{kind}: {name}: {count}, docs/request-counts.md says {old}"));
            self.set(kind, name, *count);
        }
    }

    /// Fails if something differs, or changes the page if `NERITE_WRITE_COUNTS` is set.
    #[track_caller]
    pub fn end(self) {
        if std::env::var_os("NERITE_WRITE_COUNTS").is_some() {
            fs::write(PAGE, self.lines.join("\n") + "\n").unwrap();
            return;
        }
        assert!(
            self.differences.is_empty(),
            "requests cost something else than before. NERITE_STACKS=1 shows where they allocate and take locks. If it has to be so, NERITE_WRITE_COUNTS=1 changes \
             the page.\n{}",
            self.differences.join("\n")
        );
    }

    fn has_one(&self, kind: &str, Column { name, tolerance }: &Column, count: f64) -> bool {
        self.count(kind, name).is_some_and(|old| (old - count).abs() <= tolerance * old)
    }

    fn count(&self, kind: &str, column: &str) -> Option<f64> {
        cells(&self.lines[self.row(kind)?]).get(self.column(column))?.parse().ok()
    }

    fn set(&mut self, kind: &str, column: &str, count: f64) {
        let (row, column) = (self.row(kind).unwrap_or_else(|| self.add(kind)), self.column(column));
        let mut cells = cells(&self.lines[row]);
        cells.resize(cells.len().max(column + 1), String::new());
        let digits = if count < 100.0 { 100.0 } else { 1.0 };
        cells[column] = ((count * digits).round() / digits).to_string();
        self.lines[row] = format!("| {} |", cells.join(" | "));
    }

    /// Adds a row at the end of the table.
    fn add(&mut self, kind: &str) -> usize {
        let at = self.lines.iter().rposition(|line| line.starts_with('|')).unwrap() + 1;
        self.lines.insert(at, format!("| {kind} |"));
        at
    }

    fn row(&self, kind: &str) -> Option<usize> {
        let is_row = |line: &String| line.starts_with('|') && cells(line).iter().take(NAMES).eq(kind.split(" | "));
        self.lines.iter().position(is_row)
    }

    fn column(&self, name: &str) -> usize {
        let head = self.lines.iter().find(|line| line.starts_with("| protocol")).unwrap();
        cells(head).iter().position(|cell| cell == name).unwrap()
    }
}

fn cells(line: &str) -> Vec<String> {
    line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
}
