//! What are the classes of an output called?

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use nerite_config::{ConfigError, ModelConfig, check_label_path};
use nerite_request::Status;

use super::bounded::read_bounded;
use crate::limits::LABELS_BYTES_MAX;

/// Output → its labels by class index; outputs without a file of labels are absent.
pub type Labels = BTreeMap<String, Arc<[String]>>;

/// Reads the files of labels that a configuration names. A failure here is one of loading, not of polling.
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

/// One label a line; the last line's end may be missing, and lines may end as on Windows.
fn split(bytes: &[u8]) -> Arc<[String]> {
    String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect()
}

/// A path outside the model is unsupported rather than invalid.
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
