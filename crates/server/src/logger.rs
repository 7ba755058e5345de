//! How does a line of the log look, and where does it go?
//!
//! Lines look as Triton's, because scripts read them: `I1120 09:15:02.123456 4242 engine.rs:77] "loading: simple:1"`.

use std::borrow::Cow;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use log::{Level, LevelFilter, Log, Metadata, Record};
use nerite_api::LogSwitches;

/// The target of messages that are written as they are: tables would not survive quoting.
pub const PLAIN: &str = "plain";

/// Bytes at the beginning and at the end of a message that are written. Clients' names may be in it, which can be long.
const BEGINNING_BYTES_MAX: usize = 12 << 10;
const END_BYTES_MAX: usize = 4 << 10;

struct Logger {
    switches: Arc<LogSwitches>,
    file: Option<Mutex<File>>,
    escape: bool,
    pid: u32,
}

/// Makes this the process's log. With a file all lines go there, else information to stdout and the rest to stderr.
pub fn install(switches: Arc<LogSwitches>, file: Option<&Path>) -> std::io::Result<()> {
    let file = file.map(|path| File::options().append(true).create(true).open(path)).transpose()?.map(Mutex::new);
    let escape = std::env::var("TRITON_SERVER_ESCAPE_LOG_MESSAGES").map_or(true, |value| value != "0");
    let logger = Logger { switches, file, escape, pid: std::process::id() };
    // A second logger in one process is only seen in tests; the first one stays.
    if log::set_boxed_logger(Box::new(logger)).is_ok() {
        log::set_max_level(LevelFilter::Trace);
    }
    Ok(())
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Libraries below us are chatty at their own debug levels; ours are what an operator asked for.
        let ours = metadata.target().starts_with("nerite") || metadata.target() == PLAIN;
        (ours || metadata.level() <= Level::Warn) && self.switches.shows(metadata.level())
    }

    #[expect(clippy::disallowed_methods, reason = "a line of the log begins with its date")]
    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let place = record.file().and_then(|path| path.rsplit('/').next()).unwrap_or("nerite");
        let head = heading(
            record.level(),
            since.as_secs(),
            since.subsec_micros(),
            self.switches.iso_time(),
            self.pid,
            &format!("{place}:{}", record.line().unwrap_or(0)),
        );
        let message = record.args().to_string();
        let line = if self.escape && record.target() != PLAIN {
            format!("{head}{}\n", quoted(&shortened(&message)))
        } else {
            format!("{head}{message}\n")
        };
        self.write(record.level(), &line);
    }

    fn flush(&self) {}
}

impl Logger {
    /// A log that cannot be written is no reason to stop serving.
    fn write(&self, level: Level, line: &str) {
        let written = match &self.file {
            Some(file) => file.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes()),
            None if level <= Level::Warn => std::io::stderr().write_all(line.as_bytes()),
            None => {
                let mut out = std::io::stdout().lock();
                out.write_all(line.as_bytes()).and_then(|()| out.flush())
            }
        };
        drop(written);
    }
}

fn heading(level: Level, secs: u64, micros: u32, iso: bool, pid: u32, place: &str) -> String {
    let letter = match level {
        Level::Error => 'E',
        Level::Warn => 'W',
        Level::Info | Level::Debug | Level::Trace => 'I',
    };
    let (year, month, day) = civil(secs / 86_400);
    let (hour, minute, second) = (secs / 3600 % 24, secs / 60 % 60, secs % 60);
    if iso {
        format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z {letter} {pid} {place}] ")
    } else {
        format!("{letter}{month:02}{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06} {pid} {place}] ")
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
            c if steers(c) => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Whether a terminal or an editor could take the character for something else than text: controls (C0, delete, C1), separators
/// of lines and paragraphs, and what changes the direction of writing.
fn steers(c: char) -> bool {
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
}
