//! Which labels do the classes of an output have?

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use nerite_config::{ConfigError, ModelConfig, check_label_path};
use nerite_request::Status;

use super::bounded::read_bounded;
use crate::limits::{LABELS_BYTES_MAX, LABELS_MAX};

/// The labels of each output by class index. Outputs without a label file are absent.
pub type Labels = BTreeMap<String, Arc<[String]>>;

/// Reads the label files that a configuration names, each once: thousands of outputs may name the same large file. An error here fails the load, and
/// is not a [`crate::PollError`].
pub(super) fn read(config: &ModelConfig, directory: &Path) -> Result<Labels, Status> {
    let (mut labels, mut files) = (Labels::new(), BTreeMap::<&str, Arc<[String]>>::new());
    let (mut bytes, mut count) = (0, 0);
    for output in config.output.iter().filter(|output| !output.label_filename.is_empty()) {
        let file = output.label_filename.as_str();
        check_label_path(file, &output.name, &config.name).map_err(|refused| status(&refused))?;
        let known = if let Some(known) = files.get(file) {
            Arc::clone(known)
        } else {
            let content = read_bounded(&directory.join(file), LABELS_BYTES_MAX).map_err(Status::internal)?;
            bytes += content.len() as u64;
            count += lines(&content);
            check_size(&config.name, file, bytes, count)?;
            split(&content)
        };
        labels.insert(output.name.clone(), Arc::clone(&known));
        files.insert(file, known);
    }
    Ok(labels)
}

/// The memory that these labels take, each file counted once.
pub fn labels_bytes(labels: &Labels) -> usize {
    let files: BTreeMap<*const String, &Arc<[String]>> = labels.values().map(|file| (file.as_ptr(), file)).collect();
    let of_file = |file: &Arc<[String]>| file.iter().map(|label| size_of::<String>() + label.len()).sum::<usize>();
    files.into_values().map(of_file).sum()
}

/// Refuses files that are too large together. `file` is the last one of them.
fn check_size(model: &str, file: &str, bytes: u64, count: usize) -> Result<(), Status> {
    let refuse = |is: String, max: u64, what: &str| {
        Err(Status::invalid(format!(
            "the label files of model '{model}' have {is} {what} with '{file}', at most {max} are possible; name smaller files"
        )))
    };
    if bytes > LABELS_BYTES_MAX {
        return refuse(bytes.to_string(), LABELS_BYTES_MAX, "bytes");
    }
    if count > LABELS_MAX {
        return refuse(count.to_string(), LABELS_MAX as u64, "labels");
    }
    Ok(())
}

/// The most labels that [`split`] makes of this.
fn lines(bytes: &[u8]) -> usize {
    bytes.split(|byte| *byte == b'\n').count()
}

/// One label per line. The last line may lack its line feed, and lines may end with CR LF.
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

    /// An output for each of these files, which are in a directory with the given ones.
    fn read_of(names: &[String], files: &[(&str, Vec<u8>)]) -> Result<Labels, Status> {
        let folder = tempfile::tempdir().expect("there is space");
        for (name, content) in files {
            std::fs::write(folder.path().join(name), content).expect("there is space");
        }
        let output = |(at, name): (usize, &String)| format!("output {{ name: 'o{at}' label_filename: '{name}' }} ");
        let outputs: String = names.iter().enumerate().map(output).collect();
        let config = nerite_config::parse_text("", format!("name: 'm' {outputs}").as_bytes()).expect("it is text");
        read(&config, folder.path())
    }

    #[test]
    fn a_file_is_read_once_for_all_outputs_that_name_it() {
        let names = vec!["a".to_owned(); 10_000];
        let labels = read_of(&names, &[("a", b"cat\ndog\n".repeat(1000))]).expect("they are few");
        assert_eq!((labels.len(), labels["o7"].len()), (10_000, 2000));
        assert_eq!(labels_bytes(&labels), 2000 * (size_of::<String>() + 3));
    }

    #[test]
    fn the_files_have_a_bound_together() {
        let half = vec![b'x'; LABELS_BYTES_MAX as usize / 2 + 1];
        let names = ["a".to_owned(), "b".to_owned()];
        let refused = read_of(&names, &[("a", half.clone()), ("b", half)]).map(drop).map_err(|status| status.message);
        let text = "the label files of model 'm' have 67108866 bytes with 'b', at most 67108864 are possible; name smaller files";
        assert_eq!(refused, Err(text.to_owned()));
        let refused =
            read_of(&names[..1], &[("a", vec![b'\n'; LABELS_MAX])]).map(drop).map_err(|status| status.message);
        let text = "the label files of model 'm' have 1048577 labels with 'a', at most 1048576 are possible; name smaller files";
        assert_eq!(refused, Err(text.to_owned()));
    }
}
