//! Where is the class of a backend?

use std::path::{Path, PathBuf};

/// The name of the file with a backend's class. It is also the value of `runtime` in a configuration that selects such a backend.
pub const BACKEND_CLASS: &str = "model.py";

/// The backends in a directory that are Python classes: their names and directories.
pub fn python_backends_in(directory: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .filter(|(_, path)| path.join(BACKEND_CLASS).is_file())
        .collect();
    found.sort();
    found
}

/// The environment that a backend brings: an archive beside its class.
pub(crate) fn environment_in(directory: &Path) -> Option<PathBuf> {
    let archive = directory.join(format!("pb_exec_env_{BACKEND_CLASS}.tar.gz"));
    archive.is_file().then_some(archive)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_backend_is_a_directory_with_a_class() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["vllm/model.py", "a/model.py", "b/libtriton_b.so", "model.py"] {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let names: Vec<_> = python_backends_in(folder.path()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "vllm"]);
        assert!(python_backends_in(&folder.path().join("none")).is_empty());
    }

    #[test]
    fn an_environment_lies_beside_the_class() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(environment_in(folder.path()), None);
        let archive = folder.path().join("pb_exec_env_model.py.tar.gz");
        std::fs::write(&archive, "").unwrap();
        assert_eq!(environment_in(folder.path()), Some(archive));
    }
}
