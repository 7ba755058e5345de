//! Which variables would `bin/activate` of an environment change, and which Python is in it?
//!
//! No shell is run, so scripts of packages (`etc/conda/activate.d`) are not run either.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::search::{SearchEnvironment, python_below};

/// The interpreter of the environment at `root`. An error says what is there instead. Triton requires the script `bin/activate`, and this server does
/// not. If both the script and the interpreter are missing, the text is Triton's.
pub(super) fn program(root: &Path) -> Result<PathBuf, String> {
    if let Some(program) = python_below(root) {
        return Ok(program);
    }
    let link = ["bin/python3", "bin/python"].into_iter().map(|name| root.join(name)).find(|path| path.is_symlink());
    if let Some(link) = link {
        let target = std::fs::read_link(&link).unwrap_or_default();
        return Err(format!(
            "its interpreter '{}' is a link to '{}', which is no program on this host; a virtual environment needs the Python \
             that it was made of, an environment packed by conda-pack brings its own",
            link.display(),
            target.display()
        ));
    }
    let activate = root.join("bin/activate");
    if activate.exists() {
        return Err(format!("'{}' has bin/activate, but neither bin/python3 nor bin/python", root.display()));
    }
    Err(format!(
        "Path {} does not exist. The Python environment should contain an 'activate' script. (Nor is there a bin/python3; bin must \
         be at the top: `tar czf environment.tar.gz -C environment .`, or conda-pack)",
        activate.display()
    ))
}

/// The variables that the environment at `root` changes. `None` unsets one.
pub(super) fn variables(root: &Path, search: &SearchEnvironment) -> Vec<(&'static str, Option<OsString>)> {
    let before = |name: &str| search.variable(name);
    let mut changed = vec![("PATH", Some(first(&root.join("bin"), before("PATH")))), ("PYTHONHOME", None)];
    if root.join("conda-meta").is_dir() {
        changed.push(("CONDA_PREFIX", Some(root.into())));
        changed.push(("VIRTUAL_ENV", None));
        // Triton also puts the environment's libraries first, for the model's process only.
        let lib = root.join("lib");
        if lib.is_dir() && !lib.as_os_str().as_encoded_bytes().contains(&b':') {
            changed.push(("LD_LIBRARY_PATH", Some(first(&lib, before("LD_LIBRARY_PATH")))));
        }
    } else {
        changed.push(("VIRTUAL_ENV", Some(root.into())));
    }
    changed
}

/// A list of folders, with another one added at its beginning.
fn first(folder: &Path, others: Option<OsString>) -> OsString {
    let mut list = folder.as_os_str().to_os_string();
    if let Some(others) = others.as_deref().filter(|others| *others != OsStr::new("")) {
        list.push(":");
        list.push(others);
    }
    list
}

/// Scripts that `bin/activate` would run and that are not run here.
pub(super) fn scripts(root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root.join("etc/conda/activate.d")).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| Path::new(name).extension() == Some(OsStr::new("sh")));
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn environment(programs: &[&str], files: &[&str]) -> tempfile::TempDir {
        let environment = tempfile::tempdir().unwrap();
        for (names, mode) in [(programs, 0o755), (files, 0o644)] {
            for name in names {
                let path = environment.path().join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(&path, "").unwrap();
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            }
        }
        environment
    }

    #[track_caller]
    fn check(programs: &[&str], files: &[&str], expect: Result<&str, &str>) {
        let environment = environment(programs, files);
        let found = program(environment.path()).map(|path| path.strip_prefix(environment.path()).unwrap().to_owned());
        let found = found.map_err(|missing| missing.replace(&environment.path().display().to_string(), "~"));
        assert_eq!(found, expect.map(PathBuf::from).map_err(str::to_owned));
    }

    #[test]
    fn the_python_of_an_environment_is_in_its_bin() {
        check(&["bin/python3", "bin/python"], &["bin/activate"], Ok("bin/python3"));
        check(&["bin/python"], &[], Ok("bin/python"));
        check(&[], &["bin/activate"], Err("'~' has bin/activate, but neither bin/python3 nor bin/python"));
        check(
            &["environment/bin/python3"],
            &["environment/bin/activate"],
            Err(
                "Path ~/bin/activate does not exist. The Python environment should contain an 'activate' script. (Nor is there a \
                 bin/python3; bin must be at the top: `tar czf environment.tar.gz -C environment .`, or conda-pack)",
            ),
        );
    }

    #[test]
    fn an_interpreter_that_stayed_on_another_host_is_reported() {
        let environment = environment(&[], &["bin/activate"]);
        symlink("/nonexistent/python3.11", environment.path().join("bin/python3")).unwrap();
        let message = program(environment.path()).unwrap_err();
        assert!(
            message.contains("is a link to '/nonexistent/python3.11', which is no program on this host"),
            "{message}"
        );
    }

    #[track_caller]
    fn check_variables(files: &[&str], names: &[&str]) {
        let environment = environment(&[], files);
        let found = variables(environment.path(), &SearchEnvironment::of_process());
        assert_eq!(found.iter().map(|(name, _)| *name).collect::<Vec<_>>(), names);
        let path = found[0].1.clone().unwrap().into_string().unwrap();
        assert!(path.starts_with(&format!("{}/bin:", environment.path().display())), "{path}");
    }

    #[test]
    fn each_kind_of_environment_is_activated_in_its_way() {
        check_variables(&["pyvenv.cfg", "lib/x"], &["PATH", "PYTHONHOME", "VIRTUAL_ENV"]);
        check_variables(
            &["conda-meta/history", "lib/x"],
            &["PATH", "PYTHONHOME", "CONDA_PREFIX", "VIRTUAL_ENV", "LD_LIBRARY_PATH"],
        );
        check_variables(&["conda-meta/history"], &["PATH", "PYTHONHOME", "CONDA_PREFIX", "VIRTUAL_ENV"]);
    }

    #[test]
    fn scripts_that_are_not_run_are_known_by_name() {
        let environment = environment(
            &[],
            &["etc/conda/activate.d/b.sh", "etc/conda/activate.d/a.sh", "etc/conda/activate.d/c.fish"],
        );
        assert_eq!(scripts(environment.path()), ["a.sh", "b.sh"]);
    }
}
