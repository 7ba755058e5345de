//! How many lines could not be written, and when is that reported?
//!
//! Lines are lost if a disk is full or nobody reads a pipe. The output reports the loss with the next line that it takes; until then stderr does.
//! Time is passed in.

/// Time between two lines on stderr about an output.
const COMPLAINT_INTERVAL_MS: u64 = 60_000;

/// The lines that an output did not take.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Lost lines that the output itself has not reported yet.
    unsaid: u64,
    /// Lost lines that stderr has not reported yet.
    unreported: u64,
    /// Why the last one was lost.
    cause: String,
    /// Whether the output ends within a line.
    is_torn: bool,
    reported_ms: Option<u64>,
}

impl Losses {
    /// What comes before the next line: the end of a line that was cut, and what `notice` makes of the number of lost lines and the cause.
    pub(super) fn prefix(&self, notice: impl Fn(u64, &str) -> String) -> String {
        let mut prefix = String::new();
        if self.is_torn {
            prefix.push('\n');
        }
        if self.unsaid > 0 {
            prefix.push_str(&notice(self.unsaid, &self.cause));
        }
        prefix
    }

    /// The output has taken the prefix.
    pub(super) fn note_said(&mut self) {
        self.unsaid = 0;
        self.is_torn = false;
    }

    /// Lines are lost.
    pub(super) fn add(&mut self, lines: u64, cause: String) {
        self.unsaid += lines;
        self.unreported += lines;
        self.cause = cause;
    }

    /// The output ends within a line, and that cannot be undone.
    pub(super) fn note_torn(&mut self) {
        self.is_torn = true;
    }

    /// The next line goes to another file.
    pub(super) fn note_moved(&mut self) {
        self.is_torn = false;
    }

    /// Whether the next line needs no prefix.
    pub(super) fn is_empty(&self) -> bool {
        self.unsaid == 0 && !self.is_torn
    }

    /// How many lines stderr should say are lost now, and why. At most one such line is due in [`COMPLAINT_INTERVAL_MS`].
    pub(super) fn take_due(&mut self, now_ms: u64) -> Option<(u64, String)> {
        let is_early = self.reported_ms.is_some_and(|at| now_ms < at + COMPLAINT_INTERVAL_MS);
        if self.unreported == 0 || is_early {
            return None;
        }
        self.reported_ms = Some(now_ms);
        Some((std::mem::take(&mut self.unreported), self.cause.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(lost: u64, cause: &str) -> String {
        format!("{lost}: {cause}\n")
    }

    #[test]
    fn the_next_line_says_what_was_lost_once() {
        let mut losses = Losses::default();
        assert!(losses.is_empty() && losses.prefix(notice).is_empty());
        losses.add(2, "full".to_owned());
        losses.add(1, "too large".to_owned());
        assert_eq!(losses.prefix(notice), "3: too large\n");
        losses.note_torn();
        assert_eq!(losses.prefix(notice), "\n3: too large\n");
        losses.note_said();
        assert!(losses.is_empty() && losses.prefix(notice).is_empty());
    }

    #[test]
    fn stderr_says_it_at_once_and_then_now_and_then() {
        let mut losses = Losses::default();
        assert_eq!(losses.take_due(0), None);
        losses.add(1, "full".to_owned());
        assert_eq!(losses.take_due(5), Some((1, "full".to_owned())));
        losses.add(7, "full".to_owned());
        assert_eq!(losses.take_due(4 + COMPLAINT_INTERVAL_MS), None);
        losses.note_said();
        assert_eq!(losses.take_due(5 + COMPLAINT_INTERVAL_MS), Some((7, "full".to_owned())));
        assert_eq!(losses.take_due(9 * COMPLAINT_INTERVAL_MS), None);
    }
}
