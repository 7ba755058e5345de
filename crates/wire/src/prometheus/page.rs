//! How are families and samples written?

use std::fmt::Write;

use super::Histogram;

/// The value of a sample.
#[derive(Clone, Copy)]
pub(super) enum Value {
    Whole(u64),
    Real(f64),
}

/// A metrics page that is being written.
pub(super) struct Page {
    pub out: String,
}

impl Page {
    /// Writes a family with these samples. Writes nothing if there are none.
    pub fn family(&mut self, name: &str, kind: &str, help: &str, samples: impl IntoIterator<Item = (String, Value)>) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return;
        }
        // Writing to a String cannot fail.
        let _ = write!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for (labels, value) in samples {
            let _ = match value {
                Value::Whole(value) => writeln!(self.out, "{name}{labels} {value}"),
                Value::Real(value) => writeln!(self.out, "{name}{labels} {value}"),
            };
        }
    }

    /// Writes the head of a family. The samples are written separately, because their names differ.
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = write!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// Writes one line.
    pub fn line(&mut self, line: std::fmt::Arguments<'_>) {
        let _ = self.out.write_fmt(line);
        self.out.push('\n');
    }

    /// Writes a histogram of durations, without labels, in seconds.
    pub fn histogram(&mut self, name: &str, help: &str, times: &Histogram) {
        let seconds = |ns: u64| ns as f64 / 1e9;
        // Writing to a String cannot fail.
        let _ = write!(self.out, "# HELP {name} {help}\n# TYPE {name} histogram\n");
        for (bound_ns, count) in &times.buckets {
            let _ = writeln!(self.out, "{name}_bucket{{le=\"{}\"}} {count}", seconds(*bound_ns));
        }
        let Histogram { count, sum_ns, .. } = *times;
        let _ = writeln!(self.out, "{name}_bucket{{le=\"+Inf\"}} {count}");
        let _ = writeln!(self.out, "{name}_sum {}\n{name}_count {count}", seconds(sum_ns));
    }
}

/// A label's value with the escapes of the text format.
pub(super) fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
