//! Which files belong to a Python, so that a process in a sandbox may read them?

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The parts of a Python that is installed in a directory with other programs, such as `/usr`.
const PARTS: [&str; 3] = ["bin", "lib", "lib64"];

/// The directories of the interpreter, of the Python that its environment was made of, and those in `PYTHONPATH` and `LD_LIBRARY_PATH`. The operator
/// must allow packages elsewhere (in a home directory, or sources that were installed as links). `is_unpacked` says that the environment is the
/// server's own copy.
pub(super) fn of(program: &Path, is_unpacked: bool) -> Vec<PathBuf> {
    let mut paths = roots(program, is_unpacked);
    for name in ["PYTHONPATH", "LD_LIBRARY_PATH"] {
        paths.extend(listed(std::env::var_os(name)));
    }
    paths
}

fn listed(paths: Option<OsString>) -> Vec<PathBuf> {
    let paths = paths.unwrap_or_default();
    // An empty entry means the current directory of the server, which may be any directory.
    std::env::split_paths(&paths).filter(|path| path.is_absolute() && path.parent().is_some()).collect()
}

fn roots(program: &Path, is_unpacked: bool) -> Vec<PathBuf> {
    let own = program.parent().and_then(Path::parent).map(Path::to_path_buf);
    let made_of = own.as_deref().and_then(home).and_then(|bin| bin.parent().map(Path::to_path_buf));
    let real = program.canonicalize().ok().and_then(|program| program.parent()?.parent().map(Path::to_path_buf));
    let mut paths = Vec::new();
    for (at, root) in [own, made_of, real].into_iter().enumerate() {
        // An environment names the Python that it was made of. A model's author can write any path there, so a directory without a Python is not
        // readable.
        let Some(root) = root.filter(|root| root.parent().is_some() && is_python(root)) else { continue };
        let is_environment =
            (is_unpacked && at == 0) || root.join("pyvenv.cfg").is_file() || root.join("conda-meta").is_dir();
        if is_environment {
            paths.push(root);
        } else {
            paths.extend(PARTS.iter().map(|part| root.join(part)));
        }
    }
    // The program itself may lie anywhere.
    paths.push(program.to_owned());
    paths
}

/// Whether a Python is installed there.
fn is_python(root: &Path) -> bool {
    // `make altinstall` installs only the name python3.12.
    let entries = PARTS.iter().flat_map(|part| root.join(part).read_dir()).flatten().flatten();
    entries.map(|entry| entry.file_name()).any(|name| name.as_encoded_bytes().starts_with(b"python"))
}

/// The directory of the interpreter that a virtual environment was made of.
fn home(root: &Path) -> Option<PathBuf> {
    let text = std::fs::read_to_string(root.join("pyvenv.cfg")).ok()?;
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs.filter(|(key, _)| key.trim() == "home").map(|(_, path)| PathBuf::from(path.trim())).next()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[track_caller]
    fn check(files: &[(&str, &str)], program: &str, is_environment: bool, expect: &[&str]) {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        for (name, text) in files {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text.replace('~', &folder.display().to_string())).unwrap();
        }
        let found = roots(&folder.join(program), is_environment);
        let expect: Vec<PathBuf> = expect.iter().map(|name| folder.join(name)).collect();
        assert!(expect.iter().all(|path| found.contains(path)), "{found:?}");
        let within = |path: &PathBuf| expect.iter().any(|place| path.starts_with(place));
        assert!(found.iter().all(within), "{found:?}");
    }

    #[test]
    fn an_environment_is_read_whole_and_a_home_directory_is_not() {
        let bin = ("a/bin/python3", "");
        let parts = ["a/bin", "a/lib", "a/lib64"];
        check(&[bin], "a/bin/python3", false, &parts);
        check(&[bin], "a/bin/python3", true, &["a"]);
        check(&[("a/bin/python3.9", "")], "a/bin/python3.9", false, &parts);
        check(&[("a/python3", "")], "a/python3", false, &["a/python3"]);
        check(&[bin, ("a/conda-meta/history", "")], "a/bin/python3", false, &["a"]);
        let files = [bin, ("b/bin/python3", ""), ("b/pyvenv.cfg", "version = 3\nhome = ~/a/bin\n")];
        check(&files, "b/bin/python3", false, &[&parts[..], &["b"]].concat());
        let lies = [bin, ("a/pyvenv.cfg", "home = ~/c/secret\n"), ("c/lib/file", ""), ("c/secret/file", "")];
        check(&lies, "a/bin/python3", false, &["a"]);
    }

    #[test]
    fn a_list_of_paths_has_no_root_in_it() {
        assert_eq!(listed(Some("/a/b:relative::/:/c".into())), [PathBuf::from("/a/b"), PathBuf::from("/c")]);
        assert_eq!(listed(None), [] as [PathBuf; 0]);
    }
}
