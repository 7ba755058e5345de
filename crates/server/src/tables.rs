//! How are tables printed at start?

/// Rows under a heading, in Triton's frame. A cell may have several lines.
pub fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let heading: Vec<String> = heading.iter().map(|&cell| cell.to_owned()).collect();
    let all = || std::iter::once(&heading).chain(rows);
    let widths: Vec<usize> = (0..heading.len())
        .map(|column| {
            all().filter_map(|row| row.get(column)).flat_map(|cell| cell.lines()).map(width).max().unwrap_or(0)
        })
        .collect();
    let dashes: Vec<String> = widths.iter().map(|width| "-".repeat(width + 2)).collect();
    let rule = format!("+{}+\n", dashes.join("+"));
    let mut text = rule.clone();
    for (at, row) in all().enumerate() {
        text.push_str(&lines_of(row, &widths));
        if at == 0 && !rows.is_empty() {
            text.push_str(&rule);
        }
    }
    text + &rule
}

fn width(text: &str) -> usize {
    text.chars().count()
}

fn lines_of(row: &[String], widths: &[usize]) -> String {
    let height = row.iter().map(|cell| cell.lines().count()).max().unwrap_or(0).max(1);
    let mut text = String::new();
    for line in 0..height {
        for (cell, &cell_width) in row.iter().zip(widths) {
            let part = cell.lines().nth(line).unwrap_or("");
            text.push_str(&format!("| {part}{} ", " ".repeat(cell_width.saturating_sub(width(part)))));
        }
        text.push_str("|\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_line_up_under_their_heading() {
        let text = table(&["Model", "Version", "Status"], &[vec!["simple".into(), "1".into(), "READY".into()]]);
        let expected = "\
+--------+---------+--------+
| Model  | Version | Status |
+--------+---------+--------+
| simple | 1       | READY  |
+--------+---------+--------+
";
        assert_eq!(text, expected);
    }
}
