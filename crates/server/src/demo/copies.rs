//! How often did the server copy a tensor?

use nerite_client::{Error, http};

use super::DemoError;

const COPIED: &str = "nerite_copied_bytes_total";

/// Bytes of tensors the server has copied since it started, over all reasons; `None` for a server that does not count, or
/// has no metrics.
pub(super) async fn copied_bytes(metrics: &http::Client) -> Result<Option<u64>, DemoError> {
    match metrics.page("/metrics").await {
        Ok(page) => Ok(sum(&page)),
        Err(Error::Connect { .. }) => Ok(None),
        Err(other) => Err(other.into()),
    }
}

fn sum(metrics: &str) -> Option<u64> {
    let samples = metrics.lines().filter(|line| line.starts_with(COPIED));
    let values = samples.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    values.fold(None, |sum, value| Some(sum.unwrap_or(0) + value as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_summed_and_comments_are_not() {
        let page = "# TYPE nerite_copied_bytes_total counter\n\
            nerite_copied_bytes_total{reason=\"model\"} 64\n\
            nerite_copied_bytes_total{reason=\"inline_request\"} 1e3\nother 5\n";
        assert_eq!(sum(page), Some(1064));
        assert_eq!(sum("nv_inference_count 3\n"), None);
    }
}
