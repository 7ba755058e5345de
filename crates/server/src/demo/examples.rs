//! Where are the examples?

use std::env;
use std::path::PathBuf;

use super::DemoError;

/// The folder asked for; else that of NERITE_EXAMPLES, of the current folder, or of the sources this was built from.
pub(super) fn find(asked: Option<PathBuf>) -> Result<PathBuf, DemoError> {
    let named = asked.or_else(|| env::var_os("NERITE_EXAMPLES").map(PathBuf::from));
    let candidates = match named {
        // Who names a folder wants that one, not another that happens to be there.
        Some(folder) => vec![folder],
        None => vec!["examples".into(), concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples").into()],
    };
    let whole = |folder: &&PathBuf| folder.join("models").is_dir() && folder.join("digits/samples.bin").is_file();
    if let Some(folder) = candidates.iter().find(whole) {
        return Ok(folder.canonicalize().unwrap_or_else(|_| folder.clone()));
    }
    let looked: Vec<String> = candidates.iter().map(|folder| folder.display().to_string()).collect();
    Err(DemoError::NoExamples(looked.join(" or ")))
}
