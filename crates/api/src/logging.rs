//! Which lines does the log show?

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nerite_locks::Mutex;
use nerite_request::Status;
use nerite_request::setting::{LogChange, LogSettings};

/// The settings of the log. Clients change them and the logger reads them. The flags are read without a lock.
#[derive(Debug)]
pub struct LogSwitches {
    settings: Mutex<LogSettings>,
    flags: AtomicU32,
    /// The flags of the command line. They decide on audit lines, so that no client can turn those off.
    operators_flags: u32,
    /// Lines that were lost, in the order of [`LogLoss`].
    lost: [AtomicU64; 2],
}

/// Why a line of the log was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLoss {
    /// Too many lines waited for the log.
    QueueFull,
    /// The log could not be written, because a disk is full for example.
    WriteFailed,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Triton's format.
    Triton,
    /// The same with the time as ISO 8601.
    Iso8601,
    /// A JSON object.
    Json,
}

impl LogFormat {
    /// The format of this name.
    pub fn parse(name: &str) -> Option<LogFormat> {
        match name {
            "default" => Some(LogFormat::Triton),
            "ISO8601" => Some(LogFormat::Iso8601),
            "json" => Some(LogFormat::Json),
            _ => None,
        }
    }
}

const INFO: u32 = 1;
const WARNING: u32 = 2;
const ERROR: u32 = 4;
const ISO: u32 = 8;
const JSON: u32 = 16;
const VERBOSE_SHIFT: u32 = 8;

impl LogSwitches {
    /// The settings of the command line.
    pub fn new(settings: LogSettings) -> LogSwitches {
        let operators_flags = flags(&settings);
        let (settings, flags) = (Mutex::new(settings), AtomicU32::new(operators_flags));
        LogSwitches { settings, flags, operators_flags, lost: Default::default() }
    }

    /// All settings.
    pub fn settings(&self) -> LogSettings {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether [`LogSwitches::change`] would apply this change.
    pub fn check(change: &LogChange) -> Result<(), Status> {
        if change.file.is_some() {
            return Err(Status::unsupported("log file location can not be updated through network protocol"));
        }
        if let Some(format) = change.format.as_deref().filter(|name| LogFormat::parse(name).is_none()) {
            return Err(Status::invalid(format!("invalid argument for log_format, got: {format}")));
        }
        Ok(())
    }

    /// Applies a change completely or not at all. Returns the new settings.
    pub fn change(&self, change: LogChange) -> Result<LogSettings, Status> {
        LogSwitches::check(&change)?;
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let next = LogSettings {
            file: settings.file.clone(),
            info: change.info.unwrap_or(settings.info),
            warning: change.warning.unwrap_or(settings.warning),
            error: change.error.unwrap_or(settings.error),
            verbose_level: change.verbose_level.unwrap_or(settings.verbose_level),
            format: change.format.unwrap_or_else(|| settings.format.clone()),
        };
        self.flags.store(flags(&next), Ordering::Relaxed);
        settings.clone_from(&next);
        Ok(next)
    }

    /// Whether lines of this level are written.
    pub fn shows(&self, level: log::Level) -> bool {
        includes(self.flags.load(Ordering::Relaxed), level)
    }

    /// Whether audit lines of this level are written: whatever clients changed, as the command line says.
    pub fn shows_audit(&self, level: log::Level) -> bool {
        includes(self.operators_flags, level)
    }

    /// Counts lines that were lost.
    pub fn note_lost(&self, loss: LogLoss, lines: u64) {
        let [queue_full, write_failed] = &self.lost;
        let count = match loss {
            LogLoss::QueueFull => queue_full,
            LogLoss::WriteFailed => write_failed,
        };
        count.fetch_add(lines, Ordering::Relaxed);
    }

    /// The lines that were lost, by reason.
    pub fn lost_lines(&self) -> [(&'static str, u64); 2] {
        let [queue_full, write_failed] = &self.lost;
        [("queue_full", queue_full), ("write_failed", write_failed)]
            .map(|(reason, count)| (reason, count.load(Ordering::Relaxed)))
    }

    /// The format of lines.
    pub fn format(&self) -> LogFormat {
        match self.flags.load(Ordering::Relaxed) & (ISO | JSON) {
            0 => LogFormat::Triton,
            ISO => LogFormat::Iso8601,
            _ => LogFormat::Json,
        }
    }
}

fn includes(flags: u32, level: log::Level) -> bool {
    match level {
        log::Level::Error => flags & ERROR != 0,
        log::Level::Warn => flags & WARNING != 0,
        log::Level::Info => flags & INFO != 0,
        log::Level::Debug => flags >> VERBOSE_SHIFT >= 1,
        log::Level::Trace => flags >> VERBOSE_SHIFT >= 2,
    }
}

fn flags(settings: &LogSettings) -> u32 {
    let flag = |set: bool, bit: u32| if set { bit } else { 0 };
    flag(settings.info, INFO)
        | flag(settings.warning, WARNING)
        | flag(settings.error, ERROR)
        | flag(settings.format == "ISO8601", ISO)
        | flag(settings.format == "json", JSON)
        | settings.verbose_level.min(0xFF) << VERBOSE_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switches() -> LogSwitches {
        LogSwitches::new(LogSettings {
            file: String::new(),
            info: true,
            warning: true,
            error: true,
            verbose_level: 0,
            format: "default".into(),
        })
    }

    #[test]
    fn a_change_takes_effect_at_once_and_other_settings_stay() {
        let switches = switches();
        switches
            .change(LogChange { info: Some(false), verbose_level: Some(1), ..LogChange::default() })
            .expect("legal");
        assert!(!switches.shows(log::Level::Info) && switches.shows(log::Level::Warn));
        assert!(switches.shows(log::Level::Debug) && !switches.shows(log::Level::Trace));
    }

    #[test]
    fn no_change_turns_audit_lines_off_or_on() {
        let switches = switches();
        let off = LogChange { info: Some(false), warning: Some(false), error: Some(false), ..LogChange::default() };
        switches.change(off).expect("legal");
        assert!(switches.shows_audit(log::Level::Info) && switches.shows_audit(log::Level::Warn));
        let silent = LogSwitches::new(switches.settings());
        silent.change(LogChange { info: Some(true), ..LogChange::default() }).expect("legal");
        assert!(silent.shows(log::Level::Info) && !silent.shows_audit(log::Level::Info));
    }

    #[test]
    fn a_refused_change_changes_nothing() {
        let switches = switches();
        let change = LogChange { info: Some(false), format: Some("x".into()), ..LogChange::default() };
        assert_eq!(
            switches.change(change).expect_err("no such format").message,
            "invalid argument for log_format, got: x"
        );
        assert!(switches.shows(log::Level::Info));
    }
}
