//! What does the log say about a collector, and how often?

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::counts::Counts;

/// The log says at most once in this time that traces are lost.
const EVERY: Duration = Duration::from_mins(1);
/// Bytes of a collector's remark that the log repeats.
const REMARK_BYTES_MAX: usize = 200;

/// Problems of the exporter that the log has to report.
#[derive(Debug, Default)]
pub(crate) struct Complaints {
    /// Why the last post was not accepted.
    reason: Option<String>,
    /// The collector's remark about a post that it accepted.
    remark: Option<String>,
    last: Option<Instant>,
    /// Lost traces that the log has reported.
    logged: u64,
    /// Whether the log said that the collector accepts nothing.
    has_complained: bool,
}

impl Complaints {
    /// The collector accepted a post.
    pub(crate) fn taken(&mut self, remark: Option<String>) {
        (self.reason, self.remark) = (None, remark);
    }

    /// The collector did not accept a post.
    pub(crate) fn refused(&mut self, reason: String) {
        self.reason = Some(reason);
    }

    /// Logs what is new.
    pub(crate) fn log_news(&mut self, now: Instant, counts: &Counts, url: &str) {
        if let Some((level, text)) = self.due(now, counts.dropped.load(Ordering::Relaxed), url) {
            log::log!(level, "{text}");
        }
    }

    fn due(&mut self, now: Instant, dropped: u64, url: &str) -> Option<(log::Level, String)> {
        let lost = dropped.saturating_sub(self.logged);
        if self.reason.is_none() && std::mem::take(&mut self.has_complained) {
            self.logged = dropped;
            let text = format!(
                "the collector at '{url}' takes traces again; {lost} were lost since it was said that it does not"
            );
            return Some((log::Level::Info, text));
        }
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < EVERY) {
            return None;
        }
        let text = match (&self.reason, &self.remark) {
            (Some(reason), _) => {
                self.has_complained = true;
                let fate = if lost == 0 { "spans wait".to_owned() } else { format!("{lost} traces are lost") };
                format!("{fate}: the collector at '{url}' did not take them: {}", cut(reason))
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
        let (mut complaints, begin) = (Complaints::default(), Instant::now());
        let due = |complaints: &mut Complaints, seconds: u64, dropped: u64| {
            let text = complaints.due(begin + Duration::from_secs(seconds), dropped, "u");
            text.map(|(level, text)| (level, text.chars().take_while(|letter| *letter != ':').collect::<String>()))
        };
        let warned = |text: &str| Some((log::Level::Warn, text.to_owned()));
        assert_eq!(due(&mut complaints, 0, 0), None);
        complaints.refused("connection refused".into());
        assert_eq!(due(&mut complaints, 1, 5), warned("5 traces are lost"));
        assert_eq!(due(&mut complaints, 2, 9), None);
        assert_eq!(
            due(&mut Complaints { reason: Some("x".into()), ..Complaints::default() }, 0, 0),
            warned("spans wait")
        );
        assert_eq!(due(&mut complaints, 62, 12), warned("7 traces are lost"));
        complaints.taken(None);
        let again = "the collector at 'u' takes traces again; 3 were lost since it was said that it does not";
        assert_eq!(due(&mut complaints, 63, 15), Some((log::Level::Info, again.to_owned())));
        assert_eq!(due(&mut complaints, 200, 15), None);
        assert_eq!(due(&mut complaints, 300, 16), warned("1 traces are lost"));
        complaints.taken(Some("x".repeat(1000)));
        assert_eq!(due(&mut complaints, 400, 16), warned("the collector at 'u' says"));
    }
}
