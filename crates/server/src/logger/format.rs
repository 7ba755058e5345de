//! How is one line of the log written?

use std::borrow::Cow;

use log::Level;

use super::printed::Printed;

/// Bytes at the beginning and at the end of a message that are written. The message may have names of clients, which can be long.
const BEGINNING_BYTES_MAX: usize = 12 << 10;
const END_BYTES_MAX: usize = 4 << 10;

/// How a message that concerns one request begins, as in Triton.
const REQUEST: &str = "[request id: ";
/// The text in place of a missing request id.
const UNKNOWN: &str = "<id_unknown>";

/// The parts of a line.
pub(super) struct Line<'l> {
    pub level: Level,
    pub secs: u64,
    pub micros: u32,
    pub pid: u32,
    /// File and line of the code.
    pub place: &'l str,
    pub message: &'l str,
}

impl Line<'_> {
    /// As Triton writes it, `escaped` or as it is.
    pub(super) fn as_text(&self, iso: bool, escaped: bool) -> String {
        let head = heading(self.level, self.secs, self.micros, iso, self.pid, self.place);
        if escaped {
            format!("{head}{}\n", quoted(&shortened(self.message)))
        } else {
            format!("{head}{}\n", self.message)
        }
    }

    /// As [`Line::as_text`], for a message that a model printed. Quotes and backslashes stay as they are, because scripts look for what was printed. Other
    /// characters that could steer a terminal are escaped if `escaped`.
    pub(super) fn as_printed_text(&self, iso: bool, escaped: bool) -> String {
        let head = heading(self.level, self.secs, self.micros, iso, self.pid, self.place);
        if escaped { format!("{head}{}\n", visible(self.message)) } else { format!("{head}{}\n", self.message) }
    }

    /// As a JSON object, with where it was printed.
    pub(super) fn as_json_of(&self, printed: &Printed) -> String {
        let Printed { model, instance, stream } = printed;
        let instance = instance.map(|instance| format!(",\"instance\":{instance}")).unwrap_or_default();
        let (message, model) = (quoted(&shortened(self.message)), quoted(&shortened(model)));
        self.as_json_with(&format!("\"message\":{message},\"model\":{model}{instance},\"stream\":\"{stream}\""))
    }

    /// As a JSON object on a line of its own.
    pub(super) fn as_json(&self) -> String {
        let request = request_id(self.message).map(|id| format!(",\"request_id\":{}", quoted(&shortened(id))));
        let message = quoted(&shortened(self.message));
        self.as_json_with(&format!("\"message\":{message}{}", request.unwrap_or_default()))
    }

    /// As a JSON object with these members in place of the message.
    pub(super) fn as_json_with(&self, members: &str) -> String {
        let level = match self.level {
            Level::Error => "error",
            Level::Warn => "warning",
            Level::Info => "info",
            Level::Debug | Level::Trace => "verbose",
        };
        let Moment { year, month, day, hour, minute, second } = Moment::of(self.secs);
        let (micros, pid) = (self.micros, self.pid);
        let place = quoted(self.place);
        format!(
            "{{\"time\":\"{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z\",\"level\":\"{level}\",\"pid\":{pid},\
             \"place\":{place},{members}}}\n"
        )
    }
}

/// The id of the request that a message concerns, if it concerns one that has an id.
fn request_id(message: &str) -> Option<&str> {
    let (id, _) = message.strip_prefix(REQUEST)?.split_once("] ")?;
    Some(id).filter(|id| *id != UNKNOWN)
}

fn heading(level: Level, secs: u64, micros: u32, iso: bool, pid: u32, place: &str) -> String {
    let letter = match level {
        Level::Error => 'E',
        Level::Warn => 'W',
        Level::Info | Level::Debug | Level::Trace => 'I',
    };
    let Moment { year, month, day, hour, minute, second } = Moment::of(secs);
    if iso {
        format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z {letter} {pid} {place}] ")
    } else {
        format!("{letter}{month:02}{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06} {pid} {place}] ")
    }
}

/// A second in UTC.
struct Moment {
    year: u64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

impl Moment {
    /// The date of a second since 1970-01-01.
    fn of(secs: u64) -> Moment {
        let (year, month, day) = civil(secs / 86_400);
        Moment { year, month, day, hour: secs / 3600 % 24, minute: secs / 60 % 60, second: secs % 60 }
    }
}

/// Year, month and day of a day counted from 1970-01-01, after Howard Hinnant's `civil_from_days`.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// The message, without its middle if it is too long.
fn shortened(message: &str) -> Cow<'_, str> {
    let Some(left_out) = message.len().checked_sub(BEGINNING_BYTES_MAX + END_BYTES_MAX).filter(|bytes| *bytes > 0)
    else {
        return Cow::Borrowed(message);
    };
    let beginning = &message[..message.floor_char_boundary(BEGINNING_BYTES_MAX)];
    let end = &message[message.ceil_char_boundary(message.len() - END_BYTES_MAX)..];
    Cow::Owned(format!("{beginning} [about {left_out} bytes are left out] {end}"))
}

/// A text on one line, with tabs, quotes and backslashes as they are.
fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            c if c != '\t' && is_control(c) => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

/// The message as a JSON string: one line whatever a client put into it.
fn quoted(message: &str) -> String {
    let mut out = String::with_capacity(message.len() + 2);
    out.push('"');
    for c in message.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if is_control(c) => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Whether a terminal or an editor could treat the character as something other than text: controls (C0, delete, C1), separators of lines and
/// paragraphs, and characters that change the direction of writing.
fn is_control(c: char) -> bool {
    matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_loses_its_middle() {
        let most = BEGINNING_BYTES_MAX + END_BYTES_MAX;
        assert_eq!(shortened(&"x".repeat(most)), "x".repeat(most));
        let long = format!("begins {} ends", "ü".repeat(60_000));
        let short = shortened(&long);
        assert!(short.starts_with("begins ü") && short.ends_with("ü ends"), "{short}");
        assert!(short.contains(&format!(" [about {} bytes are left out] ", long.len() - most)), "{short}");
        assert!(short.len() <= most + 60);
    }

    #[track_caller]
    fn check(secs: u64, iso: bool, expected: &str) {
        assert_eq!(heading(Level::Info, secs, 123, iso, 7, "a.rs:1"), expected);
    }

    #[test]
    fn a_heading_shows_utc_in_both_formats() {
        check(0, true, "1970-01-01T00:00:00Z I 7 a.rs:1] ");
        check(951_827_696, true, "2000-02-29T12:34:56Z I 7 a.rs:1] ");
        check(1_795_000_000, false, "I1118 11:06:40.000123 7 a.rs:1] ");
    }

    #[test]
    fn a_message_stays_on_its_line() {
        assert_eq!(quoted("a \"b\"\nc\u{1}"), "\"a \\\"b\\\"\\nc\\u0001\"");
    }

    #[test]
    fn no_character_steers_a_terminal_or_turns_the_text_around() {
        for c in ['\u{7f}', '\u{80}', '\u{9b}', '\u{9f}', '\u{2028}', '\u{2029}', '\u{202a}', '\u{202e}', '\u{2066}'] {
            assert_eq!(quoted(&c.to_string()), format!("\"\\u{:04X}\"", u32::from(c)));
        }
        assert_eq!(quoted("\u{a0}é\u{2027}\u{202f}漢😀"), "\"\u{a0}é\u{2027}\u{202f}漢😀\"");
    }

    #[test]
    fn what_a_model_printed_is_found_as_it_was_printed() {
        let message = "model 'm' instance 0: {\"a\": \"\\\\d\"}\tb\u{1b}[31m\rc";
        let line = Line { level: Level::Info, secs: 0, micros: 7, pid: 3, place: "a.rs:1", message };
        let text = line.as_printed_text(true, true);
        assert_eq!(
            text,
            "1970-01-01T00:00:00Z I 3 a.rs:1] model 'm' instance 0: {\"a\": \"\\\\d\"}\tb\\u001B[31m\\rc\n"
        );
        assert!(line.as_printed_text(true, false).ends_with(&format!("{message}\n")));
        let printed = |instance| Printed { model: "m\"".to_owned(), instance, stream: "stderr" };
        let line = Line { message: "a \"b\"", ..line };
        let members = r#""message":"a \"b\"","model":"m\"","instance":2,"stream":"stderr"}"#;
        assert!(line.as_json_of(&printed(Some(2))).ends_with(&format!("{members}\n")));
        assert!(line.as_json_of(&printed(None)).ends_with("\"model\":\"m\\\"\",\"stream\":\"stderr\"}\n"));
    }

    #[track_caller]
    fn check_json(message: &str, expected: &str) {
        let line = Line { level: Level::Warn, secs: 0, micros: 7, pid: 3, place: "a.rs:1", message };
        let head = r#"{"time":"1970-01-01T00:00:00.000007Z","level":"warning","pid":3,"place":"a.rs:1","message":"#;
        assert_eq!(line.as_json(), format!("{head}{expected}}}\n"));
    }

    #[test]
    fn a_line_of_json_is_one_object_and_names_the_request_that_it_concerns() {
        check_json("plain", r#""plain""#);
        check_json("two\n\"lines\"", r#""two\n\"lines\"""#);
        check_json(
            "[request id: a\"b] model 'm': comes",
            r#""[request id: a\"b] model 'm': comes","request_id":"a\"b""#,
        );
        check_json("[request id: <id_unknown>] x", r#""[request id: <id_unknown>] x""#);
        check_json("[request id: no end", r#""[request id: no end""#);
    }
}
