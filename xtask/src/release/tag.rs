//! Which commit is a release?
//!
//! The commit with the tag of the version in Cargo.toml. `cargo xtask release --tag` makes the tag, of the commit that passed `cargo xtask test all`.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{output, version_of};

/// The summary of the last tests, as a file.
pub const REPORT: &str = "target/report.md";

/// What a report begins with if `cargo xtask test all` passed on a commit, and no file differed from the commit.
pub fn passed_line(commit: &str) -> String {
    format!("cargo xtask test all passed on commit {commit}")
}

/// The commit of the tree. Err if a file differs from it. Files that git ignores do not count.
pub fn commit_of(root: &Path) -> Result<String, String> {
    let changes = output(git_in(root).args(["status", "--porcelain", "--untracked-files=normal"]))?;
    if let Some(first) = changes.lines().next() {
        let count = changes.lines().count();
        return Err(format!("{count} changes are in no commit, the first is '{}': commit them", first.trim()));
    }
    output(git_in(root).args(["rev-parse", "HEAD"])).map(|commit| commit.trim().to_owned())
}

/// Makes the tag of this version, with the report of the tests as its message.
pub fn tag(root: &Path) -> Result<(), String> {
    let git = |words: &[&str]| output(git_in(root).args(words));
    let tag = format!("v{}", version_of(root)?);
    check_passed(root, &commit_of(root)?)?;
    git(&["tag", "-a", &tag, "--cleanup=verbatim", "-F", REPORT])?;
    println!("{tag} is made; `git push origin {tag}` publishes it");
    Ok(())
}

/// Whether the report of the tests is that of a commit, and all of them passed.
fn check_passed(root: &Path, commit: &str) -> Result<(), String> {
    let wanted = passed_line(commit);
    let report = fs::read_to_string(root.join(REPORT)).unwrap_or_default();
    match report.lines().next() {
        Some(first) if first == wanted => Ok(()),
        first => Err(format!(
            "{REPORT} begins with '{}' and not with '{wanted}': run `cargo xtask test all` on this commit, until it passes",
            first.unwrap_or_default()
        )),
    }
}

/// Whether the tree is that of the tag of this version.
pub(super) fn check_tagged(root: &Path, version: &str) -> Result<(), String> {
    const CURE: &str = "`cargo xtask release --snapshot` makes packages of what lies here";
    let git = |words: &[&str]| output(git_in(root).args(words));
    let head = commit_of(root).map_err(|fault| format!("{fault}; {CURE}"))?;
    let tag = format!("v{version}");
    let Ok(tagged) = git(&["rev-parse", "--quiet", "--verify", &format!("refs/tags/{tag}^{{commit}}")]) else {
        return Err(format!(
            "there is no tag '{tag}' of the version in Cargo.toml: `cargo xtask release --tag`; {CURE}"
        ));
    };
    let tagged = tagged.trim();
    if tagged != head {
        let [tagged, head] = [tagged, &head].map(|hash| &hash[..hash.len().min(12)]);
        return Err(format!("tag '{tag}' is commit {tagged}, and the tree is of {head}: `git checkout {tag}`; {CURE}"));
    }
    Ok(())
}

pub(super) fn git_in(folder: &Path) -> Command {
    let mut git = Command::new("git");
    // A hook of git has set these for its own repository.
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        git.env_remove(name);
    }
    git.current_dir(folder);
    git
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::{anew, write};
    use super::*;

    /// A repository with one commit, in a folder of this name.
    fn repository(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("nerite-release-{}-{name}", std::process::id()));
        anew(&folder).expect("a folder for scratch");
        write(&folder.join("Cargo.toml"), b"[workspace.package]\nversion = \"1.2.3\"\n").expect("a file");
        git(&folder, &["init", "--quiet"]);
        git(&folder, &["add", "."]);
        commit(&folder);
        folder
    }

    fn git(folder: &Path, words: &[&str]) {
        let identity = [
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@example.com",
            "-c",
            "commit.gpgsign=false",
            "-c",
            "tag.gpgsign=false",
        ];
        output(git_in(folder).args(identity).args(words)).expect("git does it");
    }

    fn commit(folder: &Path) {
        git(folder, &["commit", "--quiet", "--allow-empty", "-m", "x"]);
    }

    #[track_caller]
    fn check_refused(folder: &Path, expect: Option<&str>) {
        let version = version_of(folder).expect("a version");
        assert_eq!(version, "1.2.3");
        match (check_tagged(folder, &version), expect) {
            (Ok(()), None) => {}
            (Err(why), Some(part)) => assert!(why.contains(part) && why.contains("--snapshot"), "{why}"),
            (found, expect) => panic!("{found:?}, {expect:?}"),
        }
    }

    #[test]
    fn only_the_tagged_commit_without_changes_is_released() {
        let folder = repository("tagged");
        check_refused(&folder, Some("there is no tag 'v1.2.3'"));
        git(&folder, &["tag", "v1.2.3"]);
        check_refused(&folder, None);
        write(&folder.join("new.rs"), b"").expect("a file");
        check_refused(&folder, Some("1 changes are in no commit, the first is '?? new.rs'"));
        git(&folder, &["add", "."]);
        check_refused(&folder, Some("the first is 'A  new.rs'"));
        commit(&folder);
        check_refused(&folder, Some("tag 'v1.2.3' is commit "));
        git(&folder, &["tag", "--force", "-a", "-m", "y", "v1.2.3"]);
        check_refused(&folder, None);
        fs::remove_dir_all(&folder).expect("the folder goes");
    }

    #[test]
    fn a_tag_is_made_only_of_a_commit_that_passed_all_tests() {
        let folder = repository("tag");
        write(&folder.join(".gitignore"), b"target\n").expect("a file");
        git(&folder, &["add", "."]);
        commit(&folder);
        let head = output(git_in(&folder).args(["rev-parse", "HEAD"])).expect("a commit");
        let refused = |part: &str| {
            let why = tag(&folder).expect_err("no tag");
            assert!(why.contains(part), "{why}");
        };
        refused("target/report.md begins with ''");
        write(&folder.join(REPORT), b"== 5 s in all\n").expect("a report");
        refused("begins with '== 5 s in all'");
        write(&folder.join(REPORT), format!("{}\n9 passed\n", passed_line(head.trim())).as_bytes()).expect("a report");
        write(&folder.join("new.rs"), b"").expect("a file");
        refused("1 changes are in no commit");
        fs::remove_file(folder.join("new.rs")).expect("the file goes");
        git(&folder, &["config", "user.name", "a"]);
        git(&folder, &["config", "user.email", "a@example.com"]);
        tag(&folder).expect("a tag");
        check_refused(&folder, None);
        refused("already exists");
        fs::remove_dir_all(&folder).expect("the folder goes");
    }
}
