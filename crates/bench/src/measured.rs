//! What does a measurement say that another part of the program wants?

use crate::options;
use crate::profile::{Observer, measure_first};

/// The figures of one level of load.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// Inferences a second: requests times their rows.
    pub per_second: f64,
    /// The median latency of a request, in µs.
    pub p50_us: f64,
    /// Bytes of tensors that the server copied for a request. `None`: its metrics were not wanted, or do not have it.
    pub copied_bytes: Option<f64>,
    /// Rows of a batch on average. `None`: the server has no statistics, or did not run the model.
    pub rows_per_execution: Option<f64>,
}

/// Measures what the words of a command line say, without the word `bench`, and prints nothing. Of several levels of load it measures the first one, and it
/// ignores options of sweeps and files. It blocks its thread, and does not look for signals.
///
/// The error says what is wrong with the words, or what failed.
pub fn measure(words: &[String]) -> Result<Measured, String> {
    let options = options::parse(words)?.ok_or("--help is for a command line")?;
    let point = measure_first(&options, &mut Unobserved)?;
    let server = point.server.filter(|server| server.executions > 0);
    Ok(Measured {
        per_second: point.client.throughput,
        p50_us: point.client.percentile_us(50.0),
        copied_bytes: point.cost.copied_bytes,
        rows_per_execution: server.map(|server| server.inferences as f64 / server.executions as f64),
    })
}

struct Unobserved;

impl Observer for Unobserved {}

#[cfg(test)]
mod tests {
    use super::measure;

    #[test]
    fn words_that_name_no_measurement_are_errors() {
        let refused = |word: &str| measure(&["-m".to_owned(), "m".to_owned(), word.to_owned()]).expect_err("refused");
        assert_eq!(refused("-b"), "-b needs a value");
        assert_eq!(refused("--help"), "--help is for a command line");
    }
}
