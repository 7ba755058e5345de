//! Which settings of backends would have no effect?

mod table;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use nerite_config::{did_you_mean, nearest};
use nerite_python::python_backends_in;

use super::Settings;
use crate::place;
#[cfg(test)]
pub(crate) use table::BackendSetting;
pub(crate) use table::{GROUPS, OF_ALL};

/// Where Triton's containers have their backends.
pub const BACKEND_DIRECTORY: &str = "/opt/tritonserver/backends";
/// The backends of this program.
const BUILT_IN: [&str; 4] = ["ensemble", "identity", "onnxruntime", "python"];

/// Log lines about settings that the built-in backends do not know. Each setting is (backend, key, value). Settings of compiled backends are not
/// checked.
pub(super) fn unknown(settings: &[(String, String, String)]) -> Vec<String> {
    let mut notes = Vec::new();
    for (backend, key, _) in settings {
        let known = known(backend);
        if known.is_empty() || known.contains(key.as_str()) || OF_ALL.iter().any(|one| one.name == key) {
            continue;
        }
        let meant = did_you_mean(nearest(key, known.iter().copied()));
        let known: Vec<&str> = known.into_iter().collect();
        notes.push(format!(
            "--backend-config={backend},{key} has no effect: backend '{backend}' has no such setting{meant}; it has: {}",
            known.join(", ")
        ));
    }
    notes
}

/// The settings of a built-in backend. None of another one.
fn known(backend: &str) -> BTreeSet<&'static str> {
    let own = GROUPS.iter().filter(|group| group.backends.contains(&backend));
    own.flat_map(|group| group.settings).map(|setting| setting.name).collect()
}

/// Log lines about settings of backends that are not installed.
pub fn absent(settings: &Settings) -> Vec<String> {
    // The directories of backends are read only if a setting names a backend.
    if settings.backend_config.iter().all(|(backend, ..)| backend.is_empty()) {
        return Vec::new();
    }
    without(&settings.backend_config, &installed(settings))
}

/// Where backends are that were installed with the program. A user who can write there could replace the program as well.
pub fn beside() -> PathBuf {
    place::directory().join("backends")
}

/// The backends that models may name.
fn installed(settings: &Settings) -> BTreeSet<String> {
    let directory = settings.backend_directory.as_deref().unwrap_or(Path::new(BACKEND_DIRECTORY));
    let libraries = nerite_cabi::backends_in(directory).into_iter().chain(nerite_cabi::backends_in(&beside()));
    let named = nerite_cabi::named_libraries_in(directory).into_iter().map(|(name, ..)| name);
    let found = libraries.chain(python_backends_in(directory)).map(|(name, _)| name).chain(named);
    found.chain(BUILT_IN.map(str::to_owned)).collect()
}

/// A model may have the library of its backend in its own directory.
fn without(settings: &[(String, String, String)], installed: &BTreeSet<String>) -> Vec<String> {
    let mut notes = Vec::new();
    for (backend, key, _) in settings {
        if backend.is_empty() || installed.contains(backend) {
            continue;
        }
        let meant = did_you_mean(nearest(backend, installed.iter().map(String::as_str)));
        let names: Vec<&str> = installed.iter().map(String::as_str).collect();
        notes.push(format!(
            "--backend-config={backend},{key} has no effect, except for models that have their backend in their own directory: there is no \
             backend '{backend}'{meant}; there are: {}",
            names.join(", ")
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_that_is_not_there_is_said_with_those_that_are() {
        let installed = BTreeSet::from(["onnxruntime", "python"].map(str::to_owned));
        let notes = |backend: &str| without(&[(backend.to_owned(), "key".to_owned(), "1".to_owned())], &installed);
        assert_eq!((notes(""), notes("python")), (vec![], vec![]));
        let [note] = &notes("pyton")[..] else { panic!("one note") };
        assert!(note.starts_with("--backend-config=pyton,key has no effect, except for models"), "{note}");
        assert!(note.ends_with("no backend 'pyton'; did you mean 'python'?; there are: onnxruntime, python"), "{note}");
    }

    #[track_caller]
    fn check(backend: &str, key: &str, expect: Option<&str>) {
        let notes = unknown(&[(backend.to_owned(), key.to_owned(), "1".to_owned())]);
        assert_eq!(notes.len(), usize::from(expect.is_some()), "{notes:?}");
        assert!(notes.iter().all(|note| note.contains(expect.unwrap_or_default())), "{notes:?}");
    }

    #[test]
    fn a_key_that_no_built_in_backend_has_is_said_with_those_it_has() {
        check("python", "stub-timeout-seconds", None);
        check(
            "python",
            "stub-timout-seconds",
            Some("did you mean 'stub-timeout-seconds'?; it has: debug, execute-timeout-seconds, interpreter, sandbox"),
        );
        check("onnxruntime", "intra_op_threads", Some("backend 'onnxruntime' has no such setting"));
        check("onnxruntime", "default-max-batch-size", None);
        check("onnxruntime", "min-compute-capability", None);
        // The settings of other backends are not known.
        check("mine", "anything", None);
        check("", "anything", None);
    }
}
