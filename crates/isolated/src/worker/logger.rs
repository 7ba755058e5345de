//! How do log lines of a child reach the server's log?

use std::sync::Arc;

use log::{Level, LevelFilter, Log, Metadata, Record};
use nerite_process::Channel;
use nerite_process::packets::Log as Line;

/// A logger that sends lines over the side channel.
struct SideLog(Arc<Channel>);

/// Sends all log lines of this process over this socket from now on.
pub(super) fn install(side: Arc<Channel>) {
    // Fails if there is a logger already, as in a test: then that one gets the lines.
    if log::set_boxed_logger(Box::new(SideLog(side))).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}

impl Log for SideLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Info
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let level = match record.level() {
            Level::Error => "ERROR",
            Level::Warn => "WARNING",
            Level::Info | Level::Debug | Level::Trace => "INFO",
        };
        let text = record.args().to_string();
        let at = (record.file().unwrap_or_default(), record.line().unwrap_or_default());
        // If the server is gone, or reads too slowly, the line is lost.
        let _ = self.0.try_send(&Line { level, text: &text, at }.to_string());
    }

    fn flush(&self) {}
}
