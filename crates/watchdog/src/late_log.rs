//! What does the log say about late polls?

use std::sync::PoisonError;

use nerite_locks::Mutex;

use crate::FrontEnd;
use crate::name::Activity;

/// Polls that take longer than this, in ns, are logged. A poll delays all other clients of its thread.
pub const LATE_NS: u64 = 100_000_000;
/// At most one line in this time, so that a client who makes polls late cannot fill the disk.
const LINE_EVERY_NS: u64 = 1_000_000_000;

/// How late a poll is, or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Late {
    /// It still runs after `wall_ns`.
    StillRuns { wall_ns: u64 },
    /// It ended after `wall_ns`, of which the thread used the processor for `cpu_ns`.
    Ended { wall_ns: u64, cpu_ns: u64 },
}

/// Logs a late poll, unless another one was logged less than [`LINE_EVERY_NS`] ago.
pub(crate) fn log_late(late: Late, front_end: FrontEnd, what: &Activity, now_ns: u64) {
    static LIMIT: Mutex<RateLimit> = Mutex::new(RateLimit { last_ns: None, left_out: 0 });
    let left_out = LIMIT.lock().unwrap_or_else(PoisonError::into_inner).admit(now_ns);
    if let Some(left_out) = left_out {
        log::warn!("{}", line(late, front_end, what, left_out));
    }
}

/// Admits one line per [`LINE_EVERY_NS`] and counts the others.
struct RateLimit {
    last_ns: Option<u64>,
    left_out: u64,
}

impl RateLimit {
    /// How many lines were left out before this one. `None` if this one is left out too.
    fn admit(&mut self, now_ns: u64) -> Option<u64> {
        if self.last_ns.is_some_and(|last_ns| now_ns.saturating_sub(last_ns) < LINE_EVERY_NS) {
            self.left_out += 1;
            return None;
        }
        self.last_ns = Some(now_ns);
        Some(std::mem::take(&mut self.left_out))
    }
}

fn line(late: Late, front_end: FrontEnd, what: &Activity, left_out: u64) -> String {
    let ms = |ns: u64| ns / 1_000_000;
    let mut line = match late {
        Late::StillRuns { wall_ns } => format!("a front thread has been busy for {} ms so far", ms(wall_ns)),
        Late::Ended { wall_ns, cpu_ns } => {
            format!("a front thread was busy for {} ms ({} ms of processor time)", ms(wall_ns), ms(cpu_ns))
        }
    };
    line += &format!(" with {}", front_end.name());
    if let Some(call) = &what.call {
        line += &format!(" {call}");
    }
    if let Some(model) = &what.model {
        // A client may have chosen the name, with a load request.
        line += &format!(", model '{}'", model.escape_debug());
    }
    line += ": other connections waited for it";
    if left_out > 0 {
        line += &format!(" ({left_out} more such lines were left out)");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_says_how_many_were_left_out() {
        let mut limit = RateLimit { last_ns: None, left_out: 0 };
        let admitted: Vec<_> = [0, 1, 999, 1_000, 1_001, 9_000].map(|ms| limit.admit(ms * 1_000_000)).into();
        assert_eq!(admitted, [Some(0), None, None, Some(2), None, Some(1)]);
    }

    #[track_caller]
    fn check(late: Late, what: &Activity, left_out: u64, expected: &str) {
        assert_eq!(line(late, FrontEnd::Http, what, left_out), expected);
    }

    #[test]
    fn a_line_names_what_ran() {
        let running = Late::StillRuns { wall_ns: 150_000_000 };
        let ended = Late::Ended { wall_ns: 8_000_000_000, cpu_ns: 2_000_000 };
        check(
            running,
            &Activity::default(),
            0,
            "a front thread has been busy for 150 ms so far with http: other connections waited for it",
        );
        let run = Activity { call: Some("inference".into()), model: Some("a\n_1".into()) };
        check(
            ended,
            &run,
            3,
            "a front thread was busy for 8000 ms (2 ms of processor time) with http inference, model 'a\\n_1': other connections \
             waited for it (3 more such lines were left out)",
        );
    }
}
