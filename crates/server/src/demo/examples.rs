//! Where are the examples?

use std::env;
use std::path::PathBuf;

use super::DemoError;

/// Where packages put them, from the folder of the program.
const INSTALLED: &str = "../share/nerite/examples";
/// The examples in the sources that this was built from. A release does not use them: it has its own, and the path would make its bytes depend on
/// where it was built.
const SOURCES: Option<&str> = match option_env!("NERITE_RELEASE") {
    Some(_) => None,
    None => Some(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples")),
};

/// The folder that was named; else that of NERITE_EXAMPLES, of the current folder, of the installation, or of the sources this was built from.
pub(super) fn find(directory: Option<PathBuf>) -> Result<PathBuf, DemoError> {
    let named = directory.or_else(|| env::var_os("NERITE_EXAMPLES").map(PathBuf::from));
    let built = SOURCES.map(PathBuf::from);
    let usual = || ["examples".into()].into_iter().chain(installed()).chain(built).collect();
    // If a folder is named, only that one is used.
    let candidates: Vec<PathBuf> = named.map_or_else(usual, |folder| vec![folder]);
    let whole = |folder: &&PathBuf| folder.join("models").is_dir() && folder.join("digits/samples.bin").is_file();
    if let Some(folder) = candidates.iter().find(whole) {
        return Ok(folder.canonicalize().unwrap_or_else(|_| folder.clone()));
    }
    let looked: Vec<String> = candidates.iter().map(|folder| folder.display().to_string()).collect();
    Err(DemoError::NoExamples(looked.join(" or ")))
}

/// The examples of the package that this program came with.
fn installed() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    Some(program.parent()?.join(INSTALLED))
}
