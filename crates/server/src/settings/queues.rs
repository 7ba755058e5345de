//! How many requests may wait for a model, and how many must wait before it starts?

use nerite_engine::QueueLimits;

use crate::flags::{BadValue, Values, bad};

/// Tests that were written for Triton set it, so that requests wait until there are this many.
pub const DELAY_SCHEDULER: &str = "TRITONSERVER_DELAY_SCHEDULER";
/// The same for requests of sequences that have no slot.
pub const BACKLOG_DELAY_SCHEDULER: &str = "TRITONSERVER_BACKLOG_DELAY_SCHEDULER";

/// The values of the variables [`DELAY_SCHEDULER`] and [`BACKLOG_DELAY_SCHEDULER`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Delays<'d> {
    pub queued: Option<&'d str>,
    pub backlog: Option<&'d str>,
}

/// A value in `delays` that is not a number counts as 0, as in Triton.
pub(super) fn queues(values: &Values<'_>, delays: Delays<'_>) -> Result<QueueLimits, BadValue> {
    let requests_max = values.int("queue-requests-max", QueueLimits::default().requests_max)?;
    if requests_max == 0 {
        return Err(bad(
            "queue-requests-max",
            "is 0: a request that finds no instance free could not wait; give at least 1",
        ));
    }
    let number = |text: Option<&str>| text.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    Ok(QueueLimits { requests_max, hold_back: number(delays.queued), hold_back_backlog: number(delays.backlog) })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::flags::parse;

    fn read(line: &str, queued: Option<&str>) -> Result<QueueLimits, BadValue> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        queues(&Values(&parse(&words).unwrap()), Delays { queued, backlog: queued })
    }

    #[track_caller]
    fn check(line: &str, variable: Option<&str>, requests_max: usize, hold_back: usize) {
        assert_eq!(
            read(line, variable).unwrap(),
            QueueLimits { requests_max, hold_back, hold_back_backlog: hold_back },
            "{line} {variable:?}"
        );
    }

    #[test]
    fn queues_are_bounded_unless_the_operator_raises_the_bound() {
        check("", None, 16_384, 0);
        check("--queue-requests-max=5", Some("12"), 5, 12);
        check("", Some("many"), 16_384, 0);
        assert!(read("--queue-requests-max=0", None).is_err());
        assert!(read("--queue-requests-max=-1", None).is_err());
    }
}
