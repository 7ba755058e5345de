//! What does a terminal show while a measurement runs?

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::results::Level;

/// A bar over the windows of the level that runs, on the standard error. Nothing is written where that is no terminal.
pub(crate) struct Live {
    bar: ProgressBar,
    levels: usize,
    begun: usize,
}

impl Live {
    /// With as many levels to come. 0: nobody knows.
    pub(crate) fn new(levels: usize) -> Live {
        let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{prefix:.bold} {wide_bar:.cyan/dim} {pos}/{len} {msg}");
        bar.set_style(style.expect("the template is a constant that tests read"));
        Live { bar, levels, begun: 0 }
    }

    /// A level begins.
    pub(crate) fn level(&mut self, level: &Level) {
        self.begun += 1;
        self.bar.set_position(0);
        self.bar.set_prefix(title(level, self.begun, self.levels));
        self.bar.set_message("");
    }

    /// A window has ended, the first one of a level with number 1.
    pub(crate) fn window(&self, trial: usize, trials_max: usize, throughput: f64, latency_us: f64) {
        self.bar.set_length(trials_max as u64);
        self.bar.set_position(trial as u64);
        self.bar.set_message(figures(throughput, latency_us));
    }

    /// Runs what writes to the terminal, with the bar out of its way.
    pub(crate) fn suspend<R>(&self, write: impl FnOnce() -> R) -> R {
        self.bar.suspend(write)
    }

    /// The bar goes away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn title(level: &Level, begun: usize, levels: usize) -> String {
    let level = match level {
        Level::Concurrency(clients) => format!("concurrency {clients}"),
        Level::Rate(rate) | Level::Intervals(rate) => format!("{rate:.0} requests/s"),
    };
    if levels > 1 { format!("[{begun}/{levels}] {level}") } else { level }
}

fn figures(throughput: f64, latency_us: f64) -> String {
    format!("{throughput:.0} infer/s, {latency_us:.0} µs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_counted_where_there_are_several() {
        assert_eq!(title(&Level::Concurrency(4), 1, 1), "concurrency 4");
        assert_eq!(title(&Level::Concurrency(4), 2, 8), "[2/8] concurrency 4");
        assert_eq!(title(&Level::Rate(99.6), 3, 0), "100 requests/s");
        assert_eq!(figures(2058.58, 483.4), "2059 infer/s, 483 µs");
    }

    #[test]
    fn a_bar_follows_the_windows() {
        let mut live = Live::new(2);
        live.level(&Level::Concurrency(1));
        live.window(3, 10, 2058.58, 483.4);
        assert_eq!((live.bar.position(), live.bar.length()), (3, Some(10)));
        live.level(&Level::Concurrency(2));
        assert_eq!(live.bar.position(), 0);
        assert_eq!(live.bar.prefix(), "[2/2] concurrency 2");
        assert_eq!(live.suspend(|| 7), 7);
        live.finish();
        assert!(live.bar.is_finished());
    }
}
