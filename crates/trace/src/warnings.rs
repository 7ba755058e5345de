//! What does the log say about a collector, and how often?

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::counts::Counts;

/// The log reports at most once in this time. The first loss since the collector stopped accepting traces is an exception: it is reported at once.
const EVERY: Duration = Duration::from_mins(1);
/// Bytes of a collector's remark that the log repeats.
const REMARK_BYTES_MAX: usize = 200;

/// Problems of the exporter that the log has to report.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    /// Why the last post was not accepted.
    reason: Option<String>,
    /// The collector's remark about a post that it accepted.
    remark: Option<String>,
    last: Option<Instant>,
    /// Lost traces that the log has reported.
    logged: u64,
    /// Whether the log has reported that the collector accepts nothing.
    has_warned: bool,
    /// Whether the log has reported since then that traces are lost. Before the first loss, traces only wait.
    has_told_loss: bool,
}

impl Warnings {
    /// The collector accepted a post.
    pub(crate) fn taken(&mut self, remark: Option<String>) {
        (self.reason, self.remark) = (None, remark);
    }

    /// The collector did not accept a post.
    pub(crate) fn refused(&mut self, reason: String) {
        self.reason = Some(reason);
    }

    /// Logs the next report, if one is due.
    pub(crate) fn log_news(&mut self, now: Instant, counts: &Counts, url: &str) {
        if let Some((level, text)) = self.due(now, counts.dropped.load(Ordering::Relaxed), url) {
            log::log!(level, "{text}");
        }
    }

    fn due(&mut self, now: Instant, dropped: u64, url: &str) -> Option<(log::Level, String)> {
        let lost = dropped.saturating_sub(self.logged);
        if self.reason.is_none() && std::mem::take(&mut self.has_warned) {
            (self.logged, self.has_told_loss) = (dropped, false);
            let text = format!(
                "the collector at '{url}' takes traces again; {lost} were lost since it was said that it does not"
            );
            return Some((log::Level::Info, text));
        }
        let begins_to_lose = self.reason.is_some() && lost > 0 && !self.has_told_loss;
        if !begins_to_lose && self.last.is_some_and(|last| now.saturating_duration_since(last) < EVERY) {
            return None;
        }
        let text = match (&self.reason, &self.remark) {
            (Some(reason), _) => {
                (self.has_warned, self.has_told_loss) = (true, lost > 0 || self.has_told_loss);
                let effect = if lost == 0 { "spans wait".to_owned() } else { format!("{lost} traces are lost") };
                format!("{effect}: the collector at '{url}' did not take them: {}", cut(reason))
            }
            (None, Some(remark)) => format!("the collector at '{url}' says: {}", cut(remark)),
            (None, None) if lost > 0 => format!(
                "{lost} traces are lost: too many spans waited for the collector at '{url}'; raise rate, or bsp_max_queue_size"
            ),
            (None, None) => return None,
        };
        (self.last, self.logged) = (Some(now), dropped);
        Some((log::Level::Warn, text))
    }
}

fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(REMARK_BYTES_MAX)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_at_once_and_then_now_and_then_what_is_lost() {
        let (mut warnings, begin) = (Warnings::default(), Instant::now());
        let due = |warnings: &mut Warnings, seconds: u64, dropped: u64| {
            let text = warnings.due(begin + Duration::from_secs(seconds), dropped, "u");
            text.map(|(level, text)| (level, text.chars().take_while(|letter| *letter != ':').collect::<String>()))
        };
        let warned = |text: &str| Some((log::Level::Warn, text.to_owned()));
        assert_eq!(due(&mut warnings, 0, 0), None);
        warnings.refused("connection refused".into());
        assert_eq!(due(&mut warnings, 1, 5), warned("5 traces are lost"));
        assert_eq!(due(&mut warnings, 2, 9), None);
        assert_eq!(due(&mut Warnings { reason: Some("x".into()), ..Warnings::default() }, 0, 0), warned("spans wait"));
        assert_eq!(due(&mut warnings, 62, 12), warned("7 traces are lost"));
        warnings.taken(None);
        let again = "the collector at 'u' takes traces again; 3 were lost since it was said that it does not";
        assert_eq!(due(&mut warnings, 63, 15), Some((log::Level::Info, again.to_owned())));
        assert_eq!(due(&mut warnings, 200, 15), None);
        assert_eq!(due(&mut warnings, 300, 16), warned("1 traces are lost"));
        warnings.taken(Some("x".repeat(1000)));
        assert_eq!(due(&mut warnings, 400, 16), warned("the collector at 'u' says"));

        let mut warnings = Warnings { reason: Some("connection refused".into()), ..Warnings::default() };
        assert_eq!(due(&mut warnings, 0, 0), warned("spans wait"));
        assert_eq!(due(&mut warnings, 1, 0), None);
        assert_eq!(due(&mut warnings, 7, 3), warned("3 traces are lost"));
        assert_eq!(due(&mut warnings, 8, 4), None);
    }
}
