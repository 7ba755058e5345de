//! Which labels do the classes of an output have?

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use nerite_config::{ConfigError, ModelConfig, check_label_path};
use nerite_request::Status;

use super::bounded::read_bounded;
use crate::limits::LABELS_BYTES_MAX;

/// The labels of each output by class index. Outputs without a label file are absent.
pub type Labels = BTreeMap<String, Arc<[String]>>;

/// Reads the label files that a configuration names. An error here fails the load, and is not a [`crate::PollError`].
pub(super) fn read(config: &ModelConfig, directory: &Path) -> Result<Labels, Status> {
    let mut labels = Labels::new();
    for output in config.output.iter().filter(|output| !output.label_filename.is_empty()) {
        check_label_path(&output.label_filename, &output.name, &config.name).map_err(|refused| status(&refused))?;
        let bytes =
            read_bounded(&directory.join(&output.label_filename), LABELS_BYTES_MAX).map_err(Status::internal)?;
        labels.insert(output.name.clone(), split(&bytes));
    }
    Ok(labels)
}

/// One label per line. The last line may lack its end, and lines may end as on Windows.
fn split(bytes: &[u8]) -> Arc<[String]> {
    String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect()
}

/// The error for a path outside of the model: unsupported, not invalid.
fn status(refused: &ConfigError) -> Status {
    match refused {
        ConfigError::Unsupported { text } => Status::unsupported(text),
        _ => Status::invalid(refused.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], expect: &[&str]) {
        assert_eq!(&split(bytes)[..], expect);
    }

    #[test]
    fn each_line_is_a_label() {
        check(b"cat\ndog\n", &["cat", "dog"]);
        check(b"cat\n\ndog", &["cat", "", "dog"]);
        check(b"cat\r\ndog\r\n", &["cat", "dog"]);
        check(b"", &[]);
        check(b"\xff\n", &["\u{fffd}"]);
    }
}
