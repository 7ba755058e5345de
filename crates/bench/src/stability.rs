//! Do the last windows agree?

/// The windows that have to agree, and that are reported together.
pub(crate) const WINDOWS: usize = 3;

/// The figures of one window that decide.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figures {
    /// Inferences a second.
    pub(crate) throughput: f64,
    pub(crate) latency_us: f64,
}

/// Whether throughput and latency of the last windows lie within this many percent of their average. A window without a request agrees with nothing.
pub(crate) fn is_stable(windows: &[Figures], percent: f64) -> bool {
    let Some(last) = windows.len().checked_sub(WINDOWS).and_then(|from| windows.get(from..)) else { return false };
    let agrees = |of: fn(&Figures) -> f64| {
        let average = last.iter().map(of).sum::<f64>() / last.len() as f64;
        last.iter().all(|window| of(window) > 0.0 && (of(window) - average).abs() <= average * percent / 100.0)
    };
    agrees(|figures| figures.throughput) && agrees(|figures| figures.latency_us)
}

/// Whether the latency of the last windows is too high in each, so that more windows would change nothing.
pub(crate) fn is_too_slow(windows: &[Figures], latency_max_us: Option<f64>) -> bool {
    let Some(max) = latency_max_us else { return false };
    let Some(last) = windows.len().checked_sub(WINDOWS).and_then(|from| windows.get(from..)) else { return false };
    last.iter().all(|window| window.latency_us > max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(all: &[(f64, f64)]) -> Vec<Figures> {
        all.iter()
            .map(|(throughput, latency_us)| Figures { throughput: *throughput, latency_us: *latency_us })
            .collect()
    }

    #[test]
    fn three_windows_near_their_average_are_stable() {
        assert!(is_stable(&windows(&[(1.0, 9.0), (100.0, 10.0), (105.0, 10.0), (95.0, 10.5)]), 10.0));
        assert!(!is_stable(&windows(&[(100.0, 10.0), (105.0, 10.0)]), 10.0));
        assert!(!is_stable(&windows(&[(100.0, 10.0), (100.0, 10.0), (140.0, 10.0)]), 10.0));
        assert!(!is_stable(&windows(&[(100.0, 10.0), (100.0, 10.0), (100.0, 14.0)]), 10.0));
        assert!(!is_stable(&windows(&[(0.0, 0.0); 3]), 10.0));
    }

    #[test]
    fn all_of_the_last_windows_must_be_too_slow() {
        assert!(is_too_slow(&windows(&[(1.0, 1.0), (1.0, 6.0), (1.0, 7.0), (1.0, 8.0)]), Some(5.0)));
        assert!(!is_too_slow(&windows(&[(1.0, 6.0), (1.0, 4.0), (1.0, 8.0)]), Some(5.0)));
        assert!(!is_too_slow(&windows(&[(1.0, 6.0), (1.0, 7.0), (1.0, 8.0)]), None));
    }
}
