//! Where is ONNX Runtime's shared library on this host?
//!
//! To start Python and query its packages would take longer than the whole start of the server may take. So its folders are searched by name.

use std::ffi::{CStr, CString, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// The library, in this order: `explicit` (the flag), `ORT_DYLIB_PATH`, the Python package `onnxruntime` of the Python
/// that a shell would start, the system's library folders. The paths of the first two are not checked, so that a
/// mistake in them is an error and is not skipped.
pub fn find_library(explicit: Option<&Path>) -> Option<PathBuf> {
    SearchEnvironment::of_process().find(explicit)
}

/// What is said of a host without ONNX Runtime.
pub const NOT_FOUND: &str =
    "ONNX Runtime is not found, so ONNX models run on the embedded engine, which is slower and has fewer operators";

/// How ONNX Runtime gets onto a host.
pub const INSTALL: &str = "`python3 -m pip install onnxruntime` for the python3 on the server's PATH installs it, and --onnxruntime-library names one that \
                           is elsewhere";

/// A function or variable of the open library at `path`, or of those that it needs.
pub(crate) fn symbol(path: &Path, name: &CStr) -> Option<NonNull<libc::c_void>> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: a C string; NOLOAD only finds what is already open and runs no initialiser.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: a handle from dlopen, kept open forever by `ort`, and a C string.
    NonNull::new(unsafe { libc::dlsym(handle, name.as_ptr()) })
}

/// Returns the value of an environment variable.
type Variables = Box<dyn Fn(&str) -> Option<OsString>>;

/// The conditions that the search depends on.
struct SearchEnvironment {
    variable: Variables,
    system: Vec<PathBuf>,
}

impl SearchEnvironment {
    fn of_process() -> SearchEnvironment {
        SearchEnvironment {
            variable: Box::new(|name| std::env::var_os(name).filter(|value| !value.is_empty())),
            system: system_folders(Path::new("/etc/ld.so.conf.d")),
        }
    }

    fn find(&self, explicit: Option<&Path>) -> Option<PathBuf> {
        let named = explicit.map(Path::to_path_buf).or_else(|| (self.variable)("ORT_DYLIB_PATH").map(PathBuf::from));
        if let Some(path) = named {
            return Some(std::path::absolute(&path).unwrap_or(path));
        }
        self.python_packages().into_iter().find_map(|packages| newest(&packages.join("onnxruntime/capi"))).or_else(
            || {
                let folders = self.paths("LD_LIBRARY_PATH").into_iter().chain(self.system.iter().cloned());
                folders.into_iter().find_map(|folder| newest(&folder))
            },
        )
    }

    /// Folders of installed packages. Those of the Python that a shell would start come first.
    fn python_packages(&self) -> Vec<PathBuf> {
        let mut found = self.paths("PYTHONPATH");
        if let Some(root) = (self.variable)("VIRTUAL_ENV") {
            found.extend(packages_below(Path::new(&root)));
        }
        for folder in self.paths("PATH") {
            for python in ["python3", "python"] {
                found.extend(self.prefixes(&folder, python).iter().flat_map(|prefix| packages_below(prefix)));
            }
        }
        if let Some(home) = (self.variable)("HOME") {
            found.extend(packages_below(&Path::new(&home).join(".local")));
        }
        found
    }

    /// The directories in which the Python called `folder/name` is installed: its own environment, the target of its link, or, for a shim of pyenv,
    /// the versions that are chosen there.
    fn prefixes(&self, folder: &Path, name: &str) -> Vec<PathBuf> {
        let file = folder.join(name);
        let Ok(real) = file.canonicalize() else { return Vec::new() };
        let Some(root) = folder.parent() else { return Vec::new() };
        if folder.file_name().is_some_and(|last| last == "shims") && root.join("versions").is_dir() {
            return self.pyenv_versions(root);
        }
        let linked = real.parent().and_then(Path::parent).map(Path::to_path_buf);
        if root.join("pyvenv.cfg").exists() { vec![root.to_path_buf()] } else { linked.into_iter().collect() }
    }

    fn pyenv_versions(&self, root: &Path) -> Vec<PathBuf> {
        let chosen = match (self.variable)("PYENV_VERSION") {
            Some(names) => names.to_string_lossy().replace(':', "\n"),
            None => std::fs::read_to_string(root.join("version")).unwrap_or_default(),
        };
        chosen.split_whitespace().map(|name| root.join("versions").join(name)).collect()
    }

    fn paths(&self, name: &str) -> Vec<PathBuf> {
        (self.variable)(name).map(|value| std::env::split_paths(&value).collect()).unwrap_or_default()
    }
}

/// Package folders of a Python installed at `prefix`, newest Python first.
fn packages_below(prefix: &Path) -> Vec<PathBuf> {
    let mut found: Vec<(Vec<u32>, PathBuf)> = Vec::new();
    for lib in [prefix.join("lib"), prefix.join("local/lib")] {
        for name in names(&lib) {
            let Some(version) = name.strip_prefix("python3") else { continue };
            for packages in ["site-packages", "dist-packages"] {
                found.push((numbers(version), lib.join(&name).join(packages)));
            }
        }
    }
    found.sort_by(|a, b| b.0.cmp(&a.0));
    found.into_iter().map(|(_, path)| path).filter(|path| path.is_dir()).collect()
}

/// The library with the highest version in a folder. `libonnxruntime_providers_shared.so` and similar files do not count.
fn newest(folder: &Path) -> Option<PathBuf> {
    let versions = names(folder).into_iter().filter_map(|name| {
        let version = name.strip_prefix("libonnxruntime.so")?;
        (version.is_empty() || version.starts_with('.')).then(|| (numbers(version), name.clone()))
    });
    versions.max().map(|(_, name)| folder.join(name))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn numbers(version: &str) -> Vec<u32> {
    version.split('.').filter_map(|part| part.parse().ok()).collect()
}

/// The folders of the dynamic linker, from its configuration files.
fn system_folders(configuration: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for name in names(configuration) {
        let text = std::fs::read_to_string(configuration.join(name)).unwrap_or_default();
        found.extend(text.lines().map(str::trim).filter(|line| line.starts_with('/')).map(PathBuf::from));
    }
    found.extend(["/usr/local/lib", "/usr/lib64", "/usr/lib", "/lib64", "/lib"].map(PathBuf::from));
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashMap;

    use super::*;

    /// Makes an empty folder with this name in the directory for temporary files.
    fn fresh(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("nerite-ort-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn touch(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }

    #[track_caller]
    fn check(files: &[&str], variables: &[(&str, &str)], system: &[&str], expected: Option<&str>) {
        let name = std::panic::Location::caller().line().to_string();
        let root = fresh(&name);
        for file in files {
            touch(&root.join(file));
        }
        let below =
            |text: &str| text.split(':').map(|p| root.join(p).display().to_string()).collect::<Vec<_>>().join(":");
        let variables: HashMap<String, OsString> =
            variables.iter().map(|(key, value)| ((*key).to_string(), below(value).into())).collect();
        let system = system.iter().map(|folder| root.join(folder)).collect();
        let environment = SearchEnvironment { variable: Box::new(move |key| variables.get(key).cloned()), system };
        let found = environment.find(None);
        assert_eq!(found, expected.map(|path| root.join(path)));
        std::fs::remove_dir_all(&root).unwrap();
    }

    const IN_PYTHON: &str = "lib/python3.11/site-packages/onnxruntime/capi/libonnxruntime.so.1.23.2";

    #[test]
    fn the_variable_wins_even_if_it_is_wrong() {
        let variables = [("ORT_DYLIB_PATH", "nowhere.so"), ("VIRTUAL_ENV", "env")];
        check(&[&format!("env/{IN_PYTHON}")], &variables, &[], Some("nowhere.so"));
    }

    #[test]
    fn a_flag_is_believed_before_everything() {
        let environment = SearchEnvironment { variable: Box::new(|_| Some("/other.so".into())), system: Vec::new() };
        assert_eq!(environment.find(Some(Path::new("/mine.so"))), Some(PathBuf::from("/mine.so")));
    }

    #[test]
    fn the_python_on_the_path_is_looked_through() {
        let library = format!("python/{IN_PYTHON}");
        let files = ["python/bin/python3", &library, "system/libonnxruntime.so.1"];
        check(&files, &[("PATH", "empty:python/bin")], &["system"], Some(&library));
        check(
            &["python/bin/python3", "system/libonnxruntime.so.1"],
            &[("PATH", "python/bin")],
            &["system"],
            Some(files[2]),
        );
    }

    #[test]
    fn a_virtual_environment_hides_the_python_it_was_made_of() {
        let (own, outer) = (format!("env/{IN_PYTHON}"), format!("outer/{IN_PYTHON}"));
        let files = ["env/bin/python3", "env/pyvenv.cfg", &own, "outer/bin/python3", &outer];
        check(&files, &[("PATH", "env/bin:outer/bin")], &[], Some(&own));
    }

    #[test]
    fn behind_a_shim_the_chosen_version_counts() {
        let root = fresh("shim");
        let library = root.join("versions/3.11.7").join(IN_PYTHON);
        for file in ["shims/python3", "versions/3.12.0/bin/python3"] {
            touch(&root.join(file));
        }
        touch(&library);
        std::fs::write(root.join("version"), "3.11.7\n").unwrap();
        let path = root.join("shims").into_os_string();
        let variable = Box::new(move |key: &str| (key == "PATH").then(|| path.clone()));
        assert_eq!(SearchEnvironment { variable, system: Vec::new() }.find(None), Some(library));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn of_several_versions_the_highest_is_taken_and_plug_ins_are_not() {
        let files = ["a/libonnxruntime.so.1.9.0", "a/libonnxruntime.so.1.23.2", "a/libonnxruntime_providers_shared.so"];
        check(&files, &[], &["a"], Some(files[1]));
        check(&files[2..], &[("LD_LIBRARY_PATH", "a")], &[], None);
    }
}
