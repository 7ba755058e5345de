//! What does a line of the log look like, and where is it written?
//!
//! Lines look as Triton's, because scripts read them: `I1120 09:15:02.123456 4242 engine.rs:77] "loading: simple:1"`. With the format `json` each
//! is an object. Warnings and errors that repeat are counted and summed up in one line.

mod file;
mod format;
mod losses;
mod output;
mod printed;
mod queue;
mod repeats;

use std::path::Path;
use std::sync::{Arc, Condvar, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use log::{Level, LevelFilter, Log, Metadata, Record};
use nerite_api::{ACCESS_TARGET, AUDIT_TARGET, LogFormat, LogLoss, LogSwitches};
use nerite_locks::Mutex;
use nerite_python::PRINTED_TARGET;
use nerite_watchdog::now_ns;

use file::LogFile;
use format::Line;
use output::LogOutput;
use printed::Printed;
use queue::Share;
use repeats::{Counted, Origin, Repeats, Verdict, WINDOW_MS};

/// The target of messages that are written as they are, because tables must not be quoted.
pub const PLAIN: &str = "plain";

/// How long the end of the program waits for lines in the queue.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// The process's log.
static INSTALLED: OnceLock<Arc<Inner>> = OnceLock::new();

struct Logger(Arc<Inner>);

struct Inner {
    switches: Arc<LogSwitches>,
    /// Where errors and warnings go.
    warnings: Arc<LogOutput>,
    /// Where all other lines go: the same output if there is one for all.
    information: Arc<LogOutput>,
    /// Where it is reported that another output takes no lines.
    stderr: Arc<LogOutput>,
    escape: bool,
    pid: u32,
    repeats: Mutex<Repeats>,
    /// Notified when a line is counted that was not counted before.
    counting: Condvar,
}

/// Where lines are written without a log file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// Information to stdout, the rest to stderr.
    Both,
    /// All goes to stderr. If the server is a library, stdout belongs to the program.
    Stderr,
}

/// Makes this the process's log. With a file all lines go there.
pub fn install(switches: Arc<LogSwitches>, file: Option<&Path>, streams: Streams) -> std::io::Result<()> {
    let file = file.map(LogFile::open).transpose()?;
    let has_file = file.is_some();
    let escape = std::env::var("TRITON_SERVER_ESCAPE_LOG_MESSAGES").map_or(true, |value| value != "0");
    let (pid, repeats, counting) = (std::process::id(), Mutex::default(), Condvar::new());
    let stderr = Arc::new(LogOutput::stderr());
    let warnings = file.map_or_else(|| Arc::clone(&stderr), |file| Arc::new(LogOutput::file(file)));
    let information = match streams {
        Streams::Both if !has_file => Arc::new(LogOutput::stdout()),
        _ => Arc::clone(&warnings),
    };
    let inner = Arc::new(Inner { switches, warnings, information, stderr, escape, pid, repeats, counting });
    // A second logger in one process is only seen in tests; the first one stays.
    if log::set_boxed_logger(Box::new(Logger(Arc::clone(&inner)))).is_ok() {
        log::set_max_level(LevelFilter::Trace);
        let _ = INSTALLED.set(Arc::clone(&inner));
        let thread = std::thread::Builder::new().name("nerite-log".to_owned());
        if let Err(error) = thread.spawn(move || inner.log_counted()) {
            log::warn!(
                "no thread to tell how often lines of the log repeat: {error}; they are told with the next line"
            );
        }
    }
    Ok(())
}

/// Opens the log file anew, if there is one. If it cannot be opened, lines go on to the file so far.
pub fn reopen() -> std::io::Result<()> {
    INSTALLED.get().map_or(Ok(()), |inner| inner.warnings.reopen())
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        if metadata.target() == AUDIT_TARGET {
            return self.0.switches.shows_audit(metadata.level());
        }
        // Access lines have their own switches (`--log-access`, `--log-verbose`). Switching off information does not switch them off. In Triton it does not
        // switch off either what models print.
        if [ACCESS_TARGET, PRINTED_TARGET].contains(&metadata.target()) {
            return true;
        }
        // Other libraries log much at their debug levels. An operator asks for the lines of this server.
        let ours = metadata.target().starts_with("nerite") || metadata.target() == PLAIN;
        (ours || metadata.level() <= Level::Warn) && self.0.switches.shows(metadata.level())
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let file = record.file().and_then(|path| path.rsplit('/').next()).unwrap_or("nerite");
        let (line, message) = (record.line().unwrap_or(0), record.args().to_string());
        let place = format!("{file}:{line}");
        if let Some(printed) = Printed::of(record) {
            let text = format!("{printed}: {message}");
            if !nerite_cabi::log_to_program(record.level(), file, line, &text) {
                self.0.write_printed(&place, &printed, &message);
            }
            return;
        }
        if nerite_cabi::log_to_program(record.level(), file, line, &message) {
            return;
        }
        let is_plain = record.target() == PLAIN;
        if record.target() == ACCESS_TARGET {
            return self.0.write_members(&place, &message);
        }
        if record.level() > Level::Warn || is_plain {
            return self.0.write(record.level(), &place, &message, is_plain);
        }
        self.0.write_unless_repeated(record.metadata(), &place, &message);
    }

    /// Waits for the lines in the queue. All others were written before `log` returned.
    fn flush(&self) {
        self.0.warnings.flush(FLUSH_MAX);
        if !Arc::ptr_eq(&self.0.warnings, &self.0.information) {
            self.0.information.flush(FLUSH_MAX);
        }
    }
}

impl Inner {
    fn write_unless_repeated(self: &Arc<Inner>, metadata: &Metadata<'_>, place: &str, message: &str) {
        let (level, is_audit) = (metadata.level(), metadata.target() == AUDIT_TARGET);
        let now_ms = now_ns() / 1_000_000;
        let mut repeats = self.repeats.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = repeats.take_ended(now_ms);
        let verdict = repeats.count(Origin { level, is_audit, place }, message, now_ms);
        drop(repeats);
        self.log_repeats(&ended);
        match verdict {
            Verdict::Write => self.write(level, place, message, false),
            Verdict::WriteLast => {
                let last = format!("{message} (if it comes again in these {} s, it is counted)", WINDOW_MS / 1000);
                self.write(level, place, &last, false);
            }
            Verdict::Count { is_first: true } => self.counting.notify_one(),
            Verdict::Count { is_first: false } => {}
        }
    }

    /// The loop of the thread that logs the counts, even if nothing else is logged. It sleeps while nothing is counted.
    fn log_counted(self: &Arc<Inner>) {
        loop {
            let repeats = self.repeats.lock().unwrap_or_else(PoisonError::into_inner);
            // Lines without repetitions need no wake-up. The thread waits only for windows with counted lines.
            let repeats = self.counting.wait_while(repeats, |repeats| !repeats.counts());
            drop(repeats.unwrap_or_else(PoisonError::into_inner));
            let repeats = self.repeats.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = self.counting.wait_timeout(repeats, Duration::from_millis(WINDOW_MS));
            let (mut repeats, _) = waited.unwrap_or_else(PoisonError::into_inner);
            let ended = repeats.take_ended(now_ns() / 1_000_000);
            drop(repeats);
            self.log_repeats(&ended);
        }
    }

    fn log_repeats(self: &Arc<Inner>, ended: &[Counted]) {
        let is_shown = |counted: &&Counted| {
            let Counted { level, is_audit, .. } = counted;
            if *is_audit { self.switches.shows_audit(*level) } else { self.switches.shows(*level) }
        };
        for Counted { level, place, line, times, lines_differ, .. } in ended.iter().filter(is_shown) {
            let seconds = WINDOW_MS / 1000;
            let message = if *lines_differ {
                format!("{times} lines like those before are left out within {seconds} s, the last one begins: {line}")
            } else {
                format!("{times} times more within {seconds} s: {line}")
            };
            self.write(*level, place, &message, false);
        }
    }

    /// A line of named values. It always goes through the queue, because there may be one for each request.
    fn write_members(self: &Arc<Inner>, place: &str, message: &str) {
        let line = self.line(Level::Info, place, message);
        let line = match self.switches.format() {
            // This does not hold if the format was changed after the message was made.
            LogFormat::Json if message.starts_with('"') => line.as_json_with(message),
            LogFormat::Json => line.as_json(),
            format => line.as_text(format == LogFormat::Iso8601, false),
        };
        self.enqueue(self.output(Level::Info), line, Share::Whole);
    }

    /// A line that a model's process printed. It goes to the same stream as the process wrote it to, if there is no log file.
    fn write_printed(self: &Arc<Inner>, place: &str, printed: &Printed, text: &str) {
        let output = if printed.stream == "stderr" { &self.warnings } else { &self.information };
        let line = match self.switches.format() {
            LogFormat::Json => self.line(Level::Info, place, text).as_json_of(printed),
            format => {
                let message = format!("{printed}: {text}");
                self.line(Level::Info, place, &message).as_printed_text(format == LogFormat::Iso8601, self.escape)
            }
        };
        // Lines of models leave half of the queue to others.
        self.put(output, line, Share::Half);
    }

    fn write(self: &Arc<Inner>, level: Level, place: &str, message: &str, is_plain: bool) {
        self.put(self.output(level), self.formatted(level, place, message, is_plain), Share::Whole);
    }

    fn put(self: &Arc<Inner>, output: &Arc<LogOutput>, line: String, share: Share) {
        match output.try_write(&line, &|lost, cause| self.notice(lost, cause)) {
            Some(lost) => self.note_unwritten(output, lost),
            None => self.enqueue(output, line, share),
        }
    }

    fn enqueue(self: &Arc<Inner>, output: &Arc<LogOutput>, line: String, share: Share) {
        let is_kept = output.enqueue(line, share, || {
            let (inner, output) = (Arc::clone(self), Arc::clone(output));
            move |lines: &str, lost| {
                let write = |lines: &str| {
                    let unwritten = output.write_all(lines, &|lost, cause| inner.notice(lost, cause));
                    inner.note_unwritten(&output, unwritten);
                };
                write(lines);
                if lost > 0 && inner.shows_losses() {
                    let text = format!("{lost} lines are lost: they came faster than the log takes them");
                    write(&inner.formatted(Level::Warn, "queue.rs", &text, false));
                }
            }
        });
        if !is_kept {
            self.switches.note_lost(LogLoss::QueueFull, 1);
        }
    }

    /// Counts lines that an output did not take, and says it on stderr.
    fn note_unwritten(self: &Arc<Inner>, output: &Arc<LogOutput>, lost: u64) {
        if lost == 0 {
            return;
        }
        self.switches.note_lost(LogLoss::WriteFailed, lost);
        // There is no further output that could report losses of stderr.
        if Arc::ptr_eq(output, &self.stderr) {
            return;
        }
        if let Some((lost, cause)) = output.take_complaint(now_ns() / 1_000_000) {
            let text = format!("{lost} lines are lost: the log cannot be written: {cause}");
            self.put(&self.stderr, self.formatted(Level::Error, "output.rs", &text, false), Share::Whole);
        }
    }

    /// The line that comes first when an output takes lines again.
    fn notice(&self, lost: u64, cause: &str) -> String {
        if !self.shows_losses() {
            return String::new();
        }
        let text = format!("{lost} lines were lost: the log could not be written: {cause}");
        self.formatted(Level::Warn, "output.rs", &text, false)
    }

    /// Audit lines may be among those that are lost, so no client turns this off.
    fn shows_losses(&self) -> bool {
        self.switches.shows(Level::Warn) || self.switches.shows_audit(Level::Warn)
    }

    fn output(&self, level: Level) -> &Arc<LogOutput> {
        if level <= Level::Warn { &self.warnings } else { &self.information }
    }

    fn formatted(&self, level: Level, place: &str, message: &str, is_plain: bool) -> String {
        let line = self.line(level, place, message);
        match self.switches.format() {
            LogFormat::Json => line.as_json(),
            LogFormat::Triton => line.as_text(false, self.escape && !is_plain),
            LogFormat::Iso8601 => line.as_text(true, self.escape && !is_plain),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "a line of the log begins with its date")]
    fn line<'l>(&self, level: Level, place: &'l str, message: &'l str) -> Line<'l> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Line { level, secs: since.as_secs(), micros: since.subsec_micros(), pid: self.pid, place, message }
    }
}
