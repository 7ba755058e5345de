//! How is progress shown, and how are sizes and times written?

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::termios::tcgetwinsize;

/// A bar over `steps`, on a terminal only.
pub(super) struct Progress(ProgressBar);

impl Progress {
    pub(super) fn new(steps: u64) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(steps), target());
        let style = ProgressStyle::with_template("  {bar:30} {pos}/{len} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.tick();
        Progress(bar)
    }

    /// Prints a line above the bar.
    pub(super) fn line(&self, line: &str) {
        self.0.suspend(|| println!("{line}"));
    }

    pub(super) fn step(&self, about: &str) {
        self.0.set_message(about.to_owned());
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// A spinner for a wait of unknown length, on a terminal only.
pub(super) struct Waiting(ProgressBar);

impl Waiting {
    pub(super) fn new(about: &str) -> Waiting {
        let bar = ProgressBar::with_draw_target(None, target());
        bar.set_message(about.to_owned());
        Waiting(bar)
    }

    pub(super) fn tick(&self) {
        // Nothing is painted over the first second: most servers are up by then.
        if self.0.elapsed() > Duration::from_secs(1) {
            self.0.tick();
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn target() -> ProgressDrawTarget {
    if std::io::stdout().is_terminal() { ProgressDrawTarget::stdout() } else { ProgressDrawTarget::hidden() }
}

/// The characters of a line of the terminal. `None` if this is no terminal.
pub(super) fn columns() -> Option<usize> {
    let size = tcgetwinsize(std::io::stdout()).ok().filter(|size| size.ws_col > 0);
    size.map(|size| usize::from(size.ws_col))
}

/// Whether the lines of the terminal are too short for this text.
pub(super) fn is_too_wide(text: &str) -> bool {
    let longest = text.lines().map(|line| line.chars().count()).max().unwrap_or_default();
    columns().is_some_and(|columns| longest > columns)
}

/// A size in the largest unit that divides it.
pub(super) fn size(bytes: usize) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

/// A time in µs or ms, three digits.
pub(super) fn time(us: f64) -> String {
    match us {
        us if us < 1_000.0 => format!("{us:.0} µs"),
        us if us < 10_000.0 => format!("{:.2} ms", us / 1_000.0),
        us if us < 100_000.0 => format!("{:.1} ms", us / 1_000.0),
        us => format!("{:.0} ms", us / 1_000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_short() {
        assert_eq!([size(64), size(4096), size(64 << 20), size(1500)], ["64 B", "4 KiB", "64 MiB", "1500 B"]);
        assert_eq!(
            [time(81.4), time(1_234.0), time(12_345.0), time(242_000.0)],
            ["81 µs", "1.23 ms", "12.3 ms", "242 ms"]
        );
    }
}
