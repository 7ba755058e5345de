//! What is the path of an archive's entry, and where does a link lead?

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// The most characters of a name in an error.
const SHOWN_CHARS_MAX: usize = 200;

/// The name below the archive's root, without `.` parts. Empty for the root itself. `None` if it is absolute or has a `..` part.
pub(super) fn inside(name: &[u8]) -> Option<PathBuf> {
    let mut found = PathBuf::new();
    for component in Path::new(OsStr::from_bytes(name)).components() {
        match component {
            Component::Normal(part) => found.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(found)
}

/// Bytes as a path.
pub(super) fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// A name for an error: without control characters, and of limited length.
pub(super) fn shown(name: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(name).escape_debug().take(SHOWN_CHARS_MAX).collect();
    if text.chars().count() == SHOWN_CHARS_MAX { text + "…" } else { text }
}

/// Whether the text of a symbolic link called `name` leads out of the root.
pub(super) fn leads_out(name: &Path, target: &Path) -> bool {
    let mut depth = name.components().count().saturating_sub(1);
    for component in target.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return true,
        }
    }
    false
}

/// Whether it is a name of the environment's interpreter, which in a virtual environment is a link to the Python that it was made of.
pub(super) fn is_interpreter(name: &Path) -> bool {
    let in_bin = name.parent() == Some(Path::new("bin"));
    in_bin && name.file_name().is_some_and(|name| name.as_bytes().starts_with(b"python"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_inside(name: &str, expect: Option<&str>) {
        assert_eq!(inside(name.as_bytes()), expect.map(PathBuf::from), "{name}");
    }

    #[test]
    fn a_name_stays_below_the_top_or_is_refused() {
        check_inside("bin/python3", Some("bin/python3"));
        check_inside("./bin/./python3", Some("bin/python3"));
        check_inside("lib//x/", Some("lib/x"));
        check_inside("./", Some(""));
        check_inside("", Some(""));
        check_inside("...", Some("..."));
        check_inside("/bin/x", None);
        check_inside("../x", None);
        check_inside("a/../x", None);
        check_inside("a/..", None);
    }

    #[test]
    fn a_name_is_told_plainly() {
        assert_eq!(shown(b"bin/x"), "bin/x");
        assert_eq!(shown(b"a\x1b[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(shown(&[b'x'; 5000]).chars().count(), SHOWN_CHARS_MAX + 1);
    }

    #[track_caller]
    fn check_leads_out(name: &str, target: &str, expect: bool) {
        assert_eq!(leads_out(Path::new(name), Path::new(target)), expect, "{name} -> {target}");
    }

    #[test]
    fn a_link_is_followed_by_its_text() {
        check_leads_out("lib64", "lib", false);
        check_leads_out("lib/a/b", "../../share/x", false);
        check_leads_out("lib/a/b", "../..", false);
        check_leads_out("lib/a/b", "../../..", true);
        check_leads_out("x", "..", true);
        check_leads_out("x", "a/../../b", true);
        check_leads_out("x", "/etc/passwd", true);
        check_leads_out("x", "./.", false);
    }

    #[test]
    fn only_the_interpreter_may_lie_elsewhere() {
        let is = |name: &str| is_interpreter(Path::new(name));
        assert!(is("bin/python") && is("bin/python3") && is("bin/python3.12"));
        assert!(!is("bin/pip") && !is("python3") && !is("a/bin/python3") && !is("bin/python3/x"));
    }
}
