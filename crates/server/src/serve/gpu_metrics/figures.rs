//! Which figures of a GPU are shown, and which are no longer measured?

/// Failures in a row after which a figure is dropped, as in Triton.
pub(super) const FAILURES_MAX: u32 = 3;

/// One figure of one GPU.
#[derive(Debug)]
pub(super) struct Figure<T> {
    /// The last answer.
    last: Option<T>,
    failures: u32,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The GPU or its driver does not have the figure.
    Unsupported,
    /// Something went wrong, which may pass.
    Other,
}

impl<T> Default for Figure<T> {
    fn default() -> Figure<T> {
        Figure { last: None, failures: 0 }
    }
}

impl<T: Copy> Figure<T> {
    /// What is shown: the last answer, until the figure is dropped.
    pub fn shown(&self) -> Option<T> {
        self.last
    }

    /// Whether the figure is no longer measured.
    pub fn is_dropped(&self) -> bool {
        self.failures >= FAILURES_MAX
    }

    /// Notes an answer. Returns whether the figure is dropped with it.
    pub fn note(&mut self, answer: Result<T, Failure>) -> bool {
        match answer {
            Ok(value) => *self = Figure { last: Some(value), failures: 0 },
            Err(Failure::Unsupported) => self.failures = FAILURES_MAX,
            Err(Failure::Other) => self.failures += 1,
        }
        if self.is_dropped() {
            self.last = None;
        }
        self.is_dropped()
    }
}

/// The energy that a GPU used since the server first looked.
#[derive(Debug, Default)]
pub(super) struct EnergyMeter {
    last_mj: Option<u64>,
    sum_mj: u64,
}

impl EnergyMeter {
    /// Notes the driver's counter, which begins anew if the driver is loaded again. Returns the sum in joules.
    pub fn joules(&mut self, now_mj: u64) -> f64 {
        let last_mj = self.last_mj.replace(now_mj).unwrap_or(now_mj);
        self.sum_mj += now_mj.saturating_sub(last_mj);
        self.sum_mj as f64 / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: Result<u32, Failure> = Err(Failure::Other);
    const UNSUPPORTED: Result<u32, Failure> = Err(Failure::Unsupported);

    /// Notes the answers, then checks what is shown and whether the figure is dropped.
    #[track_caller]
    fn check(answers: &[Result<u32, Failure>], shown: Option<u32>, dropped: bool) {
        let mut figure = Figure::default();
        let noted: Vec<bool> = answers.iter().map(|answer| figure.note(*answer)).collect();
        assert_eq!((figure.shown(), figure.is_dropped()), (shown, dropped), "{answers:?}");
        assert_eq!(noted.last().copied().unwrap_or(false), dropped, "{answers:?}");
    }

    #[test]
    fn the_last_answer_is_shown_until_three_failures_in_a_row() {
        check(&[], None, false);
        check(&[Ok(1), Ok(2)], Some(2), false);
        check(&[Ok(1), FAILED, FAILED], Some(1), false);
        check(&[Ok(1), FAILED, FAILED, FAILED], None, true);
        check(&[FAILED, FAILED, Ok(4), FAILED, FAILED], Some(4), false);
        check(&[FAILED, FAILED, FAILED], None, true);
    }

    #[test]
    fn what_a_gpu_does_not_have_is_dropped_at_once() {
        check(&[UNSUPPORTED], None, true);
        check(&[Ok(1), UNSUPPORTED], None, true);
    }

    #[test]
    fn energy_counts_from_the_first_look_and_never_falls() {
        let mut meter = EnergyMeter::default();
        let sums = [5000, 7500, 7500, 100, 1100].map(|now_mj| meter.joules(now_mj));
        assert_eq!(sums.map(|sum| (sum * 10.0) as u32), [0, 25, 25, 25, 35]);
    }
}
