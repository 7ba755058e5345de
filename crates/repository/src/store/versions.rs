//! Which versions does a model's directory hold?

use std::fs;
use std::io;
use std::path::Path;

use super::Warning;

/// Folders in a model's directory that have another purpose than a version.
const RESERVED: [&str; 3] = ["configs", "initial_state", "warmup"];

/// The sub-directories of a model's directory.
#[derive(Debug, Default)]
pub(super) struct Folders {
    /// Versions, ascending.
    pub versions: Vec<i64>,
    /// The first sub-directory in byte order, whether it is a version or not. The backend is deduced from it.
    pub first: Option<String>,
    /// Sub-directories that were probably meant to be versions.
    pub warnings: Vec<Warning>,
}

/// Reads a model's directory.
pub(super) fn scan(directory: &Path) -> io::Result<Folders> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if super::is_there(&entry.path()) {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort_unstable();
    let mut folders = Folders { first: names.first().cloned(), ..Folders::default() };
    for name in names {
        match version(&name) {
            Ok(version) => folders.versions.push(version),
            Err(Some(warning)) => folders.warnings.push(warning),
            Err(None) => {}
        }
    }
    folders.versions.sort_unstable();
    Ok(folders)
}

/// The version that a folder's name means, or a warning.
pub(super) fn version(name: &str) -> Result<i64, Option<Warning>> {
    if RESERVED.contains(&name) {
        return Err(None);
    }
    let digits = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    if digits && name.len() > 1 && name.starts_with('0') {
        return Err(Some(Warning::LeadingZero { folder: name.to_owned() }));
    }
    match name.parse() {
        Ok(version) if digits => Ok(version),
        _ => Err(Some(Warning::NoNumber { folder: name.to_owned() })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, expect: Result<i64, Option<&str>>) {
        let found = version(name).map_err(|warning| warning.map(|warning| warning.to_string()));
        assert_eq!(found, expect.map_err(|text| text.map(str::to_owned)));
    }

    #[test]
    fn a_version_is_a_plain_number() {
        check("1", Ok(1));
        check("0", Ok(0));
        check("9223372036854775807", Ok(i64::MAX));
    }

    #[test]
    fn what_is_almost_a_version_is_warned_of() {
        check("01", Err(Some("ignore version directory '01' which contains leading zeros in its directory name")));
        for name in ["v1", "1a", "-1", "+1", " 1", "9223372036854775808"] {
            let text = format!("ignore version directory '{name}' which fails to convert to integral number");
            check(name, Err(Some(&text)));
        }
    }

    #[test]
    fn folders_with_another_purpose_are_passed_over() {
        for name in RESERVED {
            check(name, Err(None));
        }
    }
}
