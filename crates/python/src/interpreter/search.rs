//! Which Python would a shell start?

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{NoPython, Origin};

/// Returns the value of an environment variable that is set and not empty.
type Variables = Box<dyn Fn(&str) -> Option<OsString>>;

/// The variables and the directory that the search depends on.
pub(super) struct SearchEnvironment {
    variable: Variables,
    /// The directory that the server was started in.
    current: PathBuf,
}

impl SearchEnvironment {
    /// The environment of the server.
    pub(super) fn of_process() -> SearchEnvironment {
        SearchEnvironment {
            variable: Box::new(|name| std::env::var_os(name).filter(|value| !value.is_empty())),
            current: std::env::current_dir().unwrap_or_default(),
        }
    }

    /// A variable's value.
    pub(super) fn variable(&self, name: &str) -> Option<OsString> {
        (self.variable)(name)
    }

    /// Finds the interpreter: `setting`, else that of an activated environment, else `python3` on the PATH. The setting is used without a check, so
    /// that a mistake in it causes an error. An error lists the places that were searched.
    pub(super) fn find(&self, setting: Option<&Path>) -> Result<(PathBuf, Origin), NoPython> {
        if let Some(named) = setting {
            return self.named(named).map(|program| (program, Origin::Setting));
        }
        if let Some(root) = self.variable("VIRTUAL_ENV")
            && let Some(program) = python_below(&self.current.join(root))
        {
            return Ok((program, Origin::VirtualEnv));
        }
        self.on_path("python3").map(|program| (program, Origin::Path)).ok_or_else(|| {
            let environment = match self.variable("VIRTUAL_ENV") {
                Some(root) => format!("none in VIRTUAL_ENV ({})", root.display()),
                None => "no virtual environment is active".to_owned(),
            };
            NoPython {
                found: format!("there is no python3 on the PATH ({}), and {environment}", self.path()),
                cure: "install Python 3.9 or newer with numpy, or name one with --backend-config=python,interpreter=<path>".into(),
            }
        })
    }

    /// A path is used as it is. A bare name is searched as by a shell.
    fn named(&self, named: &Path) -> Result<PathBuf, NoPython> {
        if named.components().count() != 1 || named.is_absolute() || named == Path::new(".") {
            return Ok(self.current.join(named));
        }
        self.on_path(&named.to_string_lossy()).ok_or_else(|| NoPython {
            found: format!(
                "there is no '{}' on the PATH ({}), as --backend-config=python,interpreter asks",
                named.display(),
                self.path()
            ),
            cure: "name its whole path".into(),
        })
    }

    fn path(&self) -> String {
        self.variable("PATH").unwrap_or_default().display().to_string()
    }

    /// The first program of that name. A shim of pyenv is replaced by the program that it starts, because the shim itself takes a tenth of a second.
    fn on_path(&self, name: &str) -> Option<PathBuf> {
        let path = self.variable("PATH")?;
        let folders = std::env::split_paths(&path).map(|folder| self.current.join(folder));
        let programs = folders.map(|folder| folder.join(name)).filter(|program| is_program(program));
        programs.into_iter().find_map(|program| self.behind(&program, name))
    }

    /// The program itself, or the one that a shim stands for. `None` if the shim stands for a later program on the PATH.
    ///
    /// `crates/ort` resolves shims too, for folders of packages of every chosen version. Both know pyenv's layout, and share no code.
    fn behind(&self, program: &Path, name: &str) -> Option<PathBuf> {
        let itself = Some(program.to_path_buf());
        let Some(folder) = program.parent().filter(|folder| folder.ends_with("shims")) else { return itself };
        let Some(versions) = folder.parent().map(|root| root.join("versions")).filter(|path| path.is_dir()) else {
            return itself;
        };
        for chosen in self.chosen(&versions.with_file_name("version")).split_whitespace() {
            if chosen == "system" {
                return None;
            }
            let real = version_folder(&versions, chosen).map(|folder| folder.join("bin").join(name));
            if let Some(real) = real.filter(|real| is_program(real)) {
                return Some(real);
            }
        }
        itself
    }

    /// The versions that pyenv is configured to use, best first.
    fn chosen(&self, global: &Path) -> String {
        if let Some(names) = self.variable("PYENV_VERSION") {
            return names.to_string_lossy().replace(':', "\n");
        }
        let local = self.current.ancestors().map(|folder| folder.join(".python-version"));
        local.chain([global.to_path_buf()]).find_map(|file| std::fs::read_to_string(file).ok()).unwrap_or_default()
    }
}

/// The interpreter of an environment.
pub(super) fn python_below(root: &Path) -> Option<PathBuf> {
    ["bin/python3", "bin/python"].into_iter().map(|name| root.join(name)).find(|program| is_program(program))
}

/// `3.12` means the newest 3.12.x that is installed.
fn version_folder(versions: &Path, chosen: &str) -> Option<PathBuf> {
    let exact = versions.join(chosen);
    if exact.is_dir() {
        return Some(exact);
    }
    let entries = std::fs::read_dir(versions).into_iter().flatten().flatten();
    let below = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let patch: u32 = name.strip_prefix(chosen)?.strip_prefix('.')?.parse().ok()?;
        Some((patch, entry.path()))
    });
    below.max().map(|(_, path)| path)
}

/// Whether a file can be started, by its mode.
pub(super) fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::HashMap;

    use super::*;

    /// Makes a directory with programs (`a/python3`), texts (`a/version=3.11.7`) and files that are not executable (`-a/python3`).
    fn build(root: &Path, things: &[&str]) {
        for thing in things {
            let (name, text) = thing.split_once('=').unwrap_or((thing, ""));
            let path = root.join(name.trim_start_matches('-'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            let mode = if name.starts_with('-') { 0o644 } else { 0o755 };
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
    }

    /// Paths in `variables` and in `expect` are below the directory, which is also the current directory.
    #[track_caller]
    fn check(things: &[&str], variables: &[(&str, &str)], setting: Option<&str>, expect: Result<(&str, Origin), &str>) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_path_buf();
        build(&root, things);
        let below =
            |text: &str| text.split(':').map(|p| root.join(p).display().to_string()).collect::<Vec<_>>().join(":");
        let value = |key: &str, text: &str| if key.starts_with("PYENV") { text.to_owned() } else { below(text) };
        let variables: HashMap<String, OsString> =
            variables.iter().map(|(key, text)| ((*key).to_owned(), value(key, text).into())).collect();
        let variable = Box::new(move |key: &str| variables.get(key).cloned());
        let found = SearchEnvironment { variable, current: root.clone() }.find(setting.map(Path::new));
        let found =
            found.map_err(|none| format!("{}; {}", none.found, none.cure).replace(&root.display().to_string(), "~"));
        assert_eq!(found, expect.map(|(path, origin)| (root.join(path), origin)).map_err(str::to_owned));
    }

    #[test]
    fn a_setting_comes_before_an_environment_and_that_before_the_path() {
        let things = ["mine/python3.9", "env/bin/python3", "usr/python3", "usr/python3.12"];
        let (path, env) = (("PATH", "none:usr"), ("VIRTUAL_ENV", "env"));
        check(&things, &[path, env], Some("mine/python3.9"), Ok(("mine/python3.9", Origin::Setting)));
        check(&things, &[path, env], Some("/no/python3"), Ok(("/no/python3", Origin::Setting)));
        check(&things, &[path, env], Some("python3.12"), Ok(("usr/python3.12", Origin::Setting)));
        check(&things, &[path, env], None, Ok(("env/bin/python3", Origin::VirtualEnv)));
        check(&things, &[path, ("VIRTUAL_ENV", "gone")], None, Ok(("usr/python3", Origin::Path)));
        check(&things, &[path], None, Ok(("usr/python3", Origin::Path)));
        check(&["env/bin/python"], &[env], None, Ok(("env/bin/python", Origin::VirtualEnv)));
    }

    #[test]
    fn a_file_that_is_not_executable_is_no_interpreter() {
        check(&["-a/python3", "b/python3"], &[("PATH", "a:b")], None, Ok(("b/python3", Origin::Path)));
        check(&["a/python3/x", "b/python3"], &[("PATH", "a:b")], None, Ok(("b/python3", Origin::Path)));
    }

    #[test]
    fn the_error_of_a_search_says_where_was_searched() {
        check(
            &[],
            &[("PATH", "a:b")],
            None,
            Err(
                "there is no python3 on the PATH (~/a:~/b), and no virtual environment is active; install Python 3.9 or newer \
                 with numpy, or name one with --backend-config=python,interpreter=<path>",
            ),
        );
        check(
            &[],
            &[("VIRTUAL_ENV", "env")],
            None,
            Err(
                "there is no python3 on the PATH (), and none in VIRTUAL_ENV (~/env); install Python 3.9 or newer with numpy, or \
                 name one with --backend-config=python,interpreter=<path>",
            ),
        );
        check(
            &["a/python3"],
            &[("PATH", "a")],
            Some("python3.99"),
            Err(
                "there is no 'python3.99' on the PATH (~/a), as --backend-config=python,interpreter asks; name its whole path",
            ),
        );
    }

    const PYENV: [&str; 6] = [
        "py/shims/python3",
        "py/versions/3.11.7/bin/python3",
        "py/versions/3.12.9/bin/python3",
        "py/versions/3.12.10/bin/python3",
        "usr/python3",
        "py/version=3.11.7\n",
    ];

    #[track_caller]
    fn check_shim(more: &[&str], version: Option<&str>, expect: &str) {
        let things: Vec<&str> = PYENV.iter().chain(more).copied().collect();
        let mut variables = vec![("PATH", "py/shims:usr")];
        variables.extend(version.map(|version| ("PYENV_VERSION", version)));
        check(&things, &variables, None, Ok((expect, Origin::Path)));
    }

    #[test]
    fn behind_a_shim_the_chosen_version_is_started() {
        check_shim(&[], None, PYENV[1]);
        check_shim(&[], Some("3.12.9"), PYENV[2]);
        check_shim(&[], Some("3.12"), PYENV[3]);
        check_shim(&[], Some("3.13.1:3.11.7"), PYENV[1]);
        check_shim(&[], Some("system"), PYENV[4]);
        check_shim(&[".python-version=3.12.9"], None, PYENV[2]);
        check_shim(&["py/version="], None, PYENV[0]);
        check_shim(&[], Some("3.13.1"), PYENV[0]);
    }

    #[test]
    fn a_folder_that_is_only_called_shims_has_programs() {
        check(&["my/shims/python3"], &[("PATH", "my/shims")], None, Ok(("my/shims/python3", Origin::Path)));
    }
}
