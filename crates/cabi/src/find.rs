//! Where is the library of a backend?

use std::path::{Path, PathBuf};

use nerite_config::ModelConfig;

use crate::limits::LIBRARIES_MAX;

/// The name of a backend's library.
fn file_name(backend: &str) -> String {
    format!("libtriton_{backend}.so")
}

/// The backends in a directory. Each has a subdirectory of its name, with its library in it.
pub fn backends_in(directory: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut found: Vec<_> = names
        .map(|name| (directory.join(&name).join(file_name(&name)), name))
        .filter(|(path, _)| path.is_file())
        .map(|(path, name)| (name, std::path::absolute(&path).unwrap_or(path)))
        .collect();
    found.sort();
    found
}

/// The other libraries in the directories of backends, for configurations that name the file: the backend's name, the file's, and where it is.
pub fn named_libraries_in(directory: &Path) -> Vec<(String, String, PathBuf)> {
    let mut found = Vec::new();
    for backend in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(name) = backend.file_name().into_string() else { continue };
        for file in std::fs::read_dir(backend.path()).into_iter().flatten().flatten().take(LIBRARIES_MAX) {
            let Ok(file_of) = file.file_name().into_string() else { continue };
            let is_one = file_of.starts_with("libtriton_")
                && Path::new(&file_of).extension().is_some_and(|end| end == "so")
                && file_of != file_name(&name);
            if is_one && file.path().is_file() {
                let path = std::path::absolute(file.path()).unwrap_or_else(|_| file.path());
                found.push((name.clone(), file_of, path));
            }
        }
    }
    found.sort();
    found
}

/// The library in a model's own directory: in that of its version, or that of the model. The configuration may name the file (`runtime`).
pub fn model_supplied(config: &ModelConfig, model_dir: &Path, version_dir: &Path) -> Option<PathBuf> {
    if config.backend.is_empty() || config.backend.contains('/') {
        return None;
    }
    let usual = file_name(&config.backend);
    let name = match config.runtime.as_str() {
        "" => usual.as_str(),
        // A load request can set the name, so only names of files that are meant to be loaded are accepted. Other names are refused later.
        named if named.starts_with("libtriton_") && !named.contains('/') => named,
        _ => return None,
    };
    [version_dir, model_dir].into_iter().map(|directory| directory.join(name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn touch(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }

    #[test]
    fn a_backend_is_a_directory_with_a_library_of_its_name() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["b/libtriton_b.so", "a/libtriton_a.so", "c/libtriton_x.so", "libtriton_d.so", "e/model.py"] {
            touch(&folder.path().join(file));
        }
        let names: Vec<_> = backends_in(folder.path()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(backends_in(&folder.path().join("none")).is_empty());
    }

    #[test]
    fn other_libraries_of_a_backend_are_known_by_their_files() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["b/libtriton_b.so", "b/libtriton_b_2.so", "a/libtriton_x.so", "a/other.so", "a/libtriton_x.so.1"] {
            touch(&folder.path().join(file));
        }
        let found = named_libraries_in(folder.path()).into_iter().map(|(name, file, _)| format!("{name}/{file}"));
        assert_eq!(found.collect::<Vec<_>>(), ["a/libtriton_x.so", "b/libtriton_b_2.so"]);
    }

    #[track_caller]
    fn check(files: &[&str], config: &str, expected: Option<&str>) {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path();
        for file in files {
            touch(&model.join(file));
        }
        let config = nerite_config::parse_text("", config.as_bytes()).unwrap();
        let found = model_supplied(&config, model, &model.join("1"));
        assert_eq!(found, expected.map(|path| model.join(path)));
    }

    #[test]
    fn a_model_may_bring_its_library_along() {
        let both = ["1/libtriton_b.so", "libtriton_b.so", "1/libtriton_x.so"];
        check(&both, "backend: 'b'", Some(both[0]));
        check(&both[1..], "backend: 'b'", Some(both[1]));
        check(&both, "backend: 'b' runtime: 'libtriton_x.so'", Some(both[2]));
        check(&both, "backend: 'c'", None);
        check(&both, "platform: 'ensemble'", None);
        check(&both, "backend: 'b' runtime: 'libtriton_y.so'", None);
        check(&both, "backend: 'b' runtime: 'model.py'", None);
        check(&both, "backend: 'b' runtime: '../1/libtriton_x.so'", None);
    }
}
