//! How is text that other people chose shown on a terminal?

/// Characters of a cell of a table.
const CELL_CHARS_MAX: usize = 40;

/// The text, with escapes for all characters that could control a terminal or look like other text.
pub fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for next in text.chars() {
        // Quotation marks are not escaped. A backslash is, because it would look like an escape.
        match next {
            '\'' | '"' => shown.push(next),
            _ => shown.extend(next.escape_debug()),
        }
    }
    shown
}

/// The same, short enough for a table.
pub fn cell(text: &str) -> String {
    let shown = plain(text);
    match shown.char_indices().nth(CELL_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &shown[..end]),
        None => shown,
    }
}

/// The same, but of a long text the end is kept, because paths differ there.
pub fn cell_end(text: &str) -> String {
    let shown = plain(text);
    match shown.char_indices().nth_back(CELL_CHARS_MAX) {
        Some((cut, first)) => format!("…{}", &shown[cut + first.len_utf8()..]),
        None => shown,
    }
}

/// JSON, with JSON's escapes for all characters outside of ASCII that are not letters or digits. Programs read the same text, and terminals are not
/// controlled.
pub fn plain_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for next in json.chars() {
        if next.is_ascii() || next.is_alphanumeric() {
            // JSON's writer has escaped all control characters of ASCII except the last one.
            if next == '\u{7f}' { shown.push_str("\\u007f") } else { shown.push(next) }
        } else {
            let units = next.encode_utf16(&mut [0; 2]).to_vec();
            shown.extend(units.iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    shown
}

/// Bytes for a reader: in the largest unit that gives at least one, with one decimal if it is not whole.
pub fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let Some((unit, shift)) = UNITS.iter().find(|(_, shift)| bytes >> shift > 0) else {
        return format!("{bytes} bytes");
    };
    let tenths = (u128::from(bytes) * 10) >> shift;
    match tenths % 10 {
        0 => format!("{} {unit}", tenths / 10),
        tenth => format!("{}.{tenth} {unit}", tenths / 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, shown: &str) {
        assert_eq!(plain(text), shown);
    }

    #[test]
    fn nothing_that_steers_a_terminal_gets_through() {
        check("frames", "frames");
        check("größe 'x' 日本", "größe 'x' 日本");
        check("a\u{1b}[2J", "a\\u{1b}[2J");
        check("a\r\n\tb\0", "a\\r\\n\\tb\\0");
        check("a\u{202e}b\u{200b}", "a\\u{202e}b\\u{200b}");
        check("\u{9b}2J", "\\u{9b}2J");
        check("\\u{1b}", "\\\\u{1b}");
        check("\u{301}a", "\\u{301}a");
    }

    #[test]
    fn json_keeps_its_meaning_and_has_no_characters_that_control_a_terminal() {
        let hostile = "a\u{9b}\u{7f}\u{202e}é\u{1f600}";
        let shown = plain_json(&serde_json::json!([hostile]).to_string());
        assert_eq!(shown, r#"["a\u009b\u007f\u202eé\ud83d\ude00"]"#);
        assert_eq!(serde_json::from_str::<[String; 1]>(&shown).ok(), Some([hostile.to_owned()]));
    }

    #[test]
    fn a_cell_ends_in_time() {
        assert_eq!(cell("short"), "short");
        assert_eq!(cell(&"é".repeat(41)), "é".repeat(40) + "…");
        assert_eq!(cell_end(&("x".to_owned() + &"é".repeat(39))), "x".to_owned() + &"é".repeat(39));
        assert_eq!(cell_end(&("xy".to_owned() + &"é".repeat(39))), "…".to_owned() + "y" + &"é".repeat(39));
    }

    #[test]
    fn sizes_are_short() {
        let shown = [0, 1023, 1024, 1536, 64 << 20, 1 << 40, u64::MAX].map(size);
        assert_eq!(shown, ["0 bytes", "1023 bytes", "1 KiB", "1.5 KiB", "64 MiB", "1 TiB", "16777215.9 TiB"]);
    }
}
