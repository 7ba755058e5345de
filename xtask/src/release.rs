//! How are the packages for users made?
//!
//! ```text
//!   nerite (release build) ─► target/package (a tree as below /usr) ─► tarball, Debian package
//!                          └► wheels                                  ─► all with SHA256SUMS in target/dist
//!   Cargo.lock ─► bill of materials of its crates (packaging/sbom.py)   ─┘
//! ```
//!
//! A release is made of a commit that has the tag of its version, and of nothing else. `--tag` makes the tag, of a commit that passed
//! `cargo xtask test all`. Without a tag, or with changes that no commit has, `--snapshot` makes the same packages.
//!
//! Files are sorted, owned by root and dated by the last commit, so the same program gives the same bytes each time. Paths of the build machine are
//! replaced in the program.

mod tag;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::compile::{self, LIBRARY, Machine};
use crate::library;
pub use tag::{REPORT, commit_of, passed_line, tag};
use tag::{check_tagged, git_in};

/// The directory tree as it is installed below /usr. The manifest of the Debian package names files in it.
const STAGE: &str = "target/package";
/// The directory of the finished packages.
const DIST: &str = "target/dist";
/// Where the library is tried.
const TRIED: &str = "target/tried";
/// The parts of the examples that `nerite demo` and new users need.
const EXAMPLES: [&str; 4] = ["models", "digits", "pipeline", "python"];
const README: &str = "share/doc/nerite/README.md";
/// Files that are copied, and their destinations. The README gets one more line.
const FILES: [(&str, &str); 6] = [
    ("LICENSE", "share/doc/nerite/LICENSE"),
    ("README.md", README),
    ("CHANGELOG.md", "share/doc/nerite/CHANGELOG.md"),
    ("packaging/systemd/nerite.service", "lib/systemd/system/nerite.service"),
    ("packaging/systemd/nerite.sysusers", "lib/sysusers.d/nerite.conf"),
    ("packaging/systemd/nerite.toml", "share/nerite/nerite.toml"),
];
/// Commands whose output is installed, and the destinations.
const PRINTED: [(&str, &str); 4] = [
    ("man", "share/man/man1/nerite.1"),
    ("completions bash", "share/bash-completion/completions/nerite"),
    ("completions zsh", "share/zsh/site-functions/_nerite"),
    ("completions fish", "share/fish/vendor_completions.d/nerite.fish"),
];

/// What the packages are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// The tagged commit of this version, without changes.
    Tag,
    /// What lies here.
    Snapshot,
    /// What lies here, and the program at this path, which may be of anything.
    Binary(&'a str),
}

/// Makes all packages.
pub fn run(root: &Path, source: Source<'_>, machine: Machine) -> Result<(), String> {
    if source == Source::Tag {
        check_tagged(root, &version_of(root)?)?;
    }
    let epoch = output(git_in(root).args(["log", "-1", "--format=%ct"]))?;
    let epoch = epoch.trim();
    let binary = match source {
        Source::Binary(given) => PathBuf::from(given),
        Source::Tag | Source::Snapshot => compile::build(root, machine)?,
    };
    let binary = binary.canonicalize().map_err(|cause| format!("{}: {cause}", binary.display()))?;
    let dist = root.join(DIST);
    anew(&dist)?;
    stage(root, &binary, machine)?;
    check_library(root, machine)?;
    let version = output(machine.run(&binary)?.arg("version"))?;
    let version =
        version.trim().strip_prefix("nerite ").ok_or_else(|| format!("'{version}' is no version"))?.to_owned();
    let name = format!("nerite-{version}-{}-linux", machine.name());
    tarball(root, &name, epoch)?;
    bill_of_materials(root, &name, machine, epoch)?;
    wheels(root, &binary, machine, epoch)?;
    debian(root, machine, epoch)?;
    sums(&dist)
}

/// The version of all crates.
fn version_of(root: &Path) -> Result<String, String> {
    let manifest = root.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).map_err(|cause| format!("{}: {cause}", manifest.display()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
    line.map(str::to_owned).ok_or_else(|| format!("{} has no line 'version = \"…\"'", manifest.display()))
}

/// Fills the directory tree that is installed.
fn stage(root: &Path, binary: &Path, machine: Machine) -> Result<(), String> {
    let stage = root.join(STAGE);
    anew(&stage)?;
    copy(binary, &stage.join("bin/nerite"))?;
    // Where it does not take the place of NVIDIA's.
    let library = binary.with_file_name(LIBRARY);
    if library.is_file() {
        copy(&library, &stage.join("lib/nerite").join(LIBRARY))?;
    }
    for (from, to) in FILES {
        copy(&root.join(from), &stage.join(to))?;
    }
    write(&stage.join(README), readme(root)?.as_bytes())?;
    for (words, to) in PRINTED {
        let text = output(machine.run(binary)?.args(words.split(' ')))?;
        write(&stage.join(to), text.as_bytes())?;
    }
    for part in EXAMPLES {
        copy_all(&root.join("examples").join(part), &stage.join("share/nerite/examples").join(part))?;
    }
    Ok(())
}

/// The README as it is packed. Its links lead to pages that are not packed, so a line says where they are.
fn readme(root: &Path) -> Result<String, String> {
    let read = |name: &str| fs::read_to_string(root.join(name)).map_err(|cause| format!("{name}: {cause}"));
    let (text, site) = (read("README.md")?, read("book.toml")?);
    let pages = site.lines().find_map(|line| line.strip_prefix("repository = \"")?.strip_suffix('"'));
    let pages = pages.ok_or("book.toml has no line 'repository = \"…\"'")?;
    let line =
        format!("The pages that this text links to are not in this package. Follow its links at <{pages}/README.md>.");
    Ok(text.replacen("\n\n", &format!("\n\n{line}\n\n"), 1))
}

/// Tries the library that is staged, if it is.
fn check_library(root: &Path, machine: Machine) -> Result<(), String> {
    let library = root.join(STAGE).join("lib/nerite").join(LIBRARY);
    if !library.is_file() {
        println!("no {LIBRARY}: it is not beside the program (`cargo build --release -p nerite-inprocess`)");
        return Ok(());
    }
    let scratch = root.join(TRIED);
    anew(&scratch)?;
    library::check(root, &library, &scratch, machine)
}

fn tarball(root: &Path, name: &str, epoch: &str) -> Result<(), String> {
    let file = root.join(DIST).join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    // Who may read the files here depends on the umask of whoever checked them out.
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu", "--mode=u=rwX,go=rX"]);
    tar.arg(format!("--mtime=@{epoch}"))
        .arg(format!("--transform=s,^\\.,{name},"))
        .args(["--use-compress-program=gzip -n9"]);
    run_it(tar.arg("-cf").arg(file).arg("-C").arg(root.join(STAGE)).arg("."))
}

/// What the program was built from, for those who must know: crates, licences and checksums.
fn bill_of_materials(root: &Path, name: &str, machine: Machine, epoch: &str) -> Result<(), String> {
    let target = machine.target();
    let mut sbom = Command::new("python3");
    sbom.args(["packaging/sbom.py", &target]).current_dir(root).env("SOURCE_DATE_EPOCH", epoch);
    let text = output(&mut sbom)?;
    write(&root.join(DIST).join(format!("{name}.cdx.json")), text.as_bytes())
}

/// The wheels of the server and of its clients. They are built in the tests' environment if it exists, because it has the build tools.
fn wheels(root: &Path, binary: &Path, machine: Machine, epoch: &str) -> Result<(), String> {
    let environment = root.join(".venv/bin/python");
    let has_backend = |python: &Path| {
        Command::new(python).args(["-c", "import hatchling, elftools"]).output().is_ok_and(|done| done.status.success())
    };
    let is_ready = has_backend(&environment);
    let mut pip = Command::new(if is_ready { environment.as_os_str() } else { OsStr::new("python3") });
    pip.args(["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", DIST, "./python", "./packaging/wheel"]);
    if is_ready {
        pip.arg("--no-build-isolation");
    }
    // The wheel's build asks the program for its version.
    pip.env("NERITE_RUNNER", machine.runner()?.join(" ")).env("CARGO_BUILD_TARGET", machine.target());
    run_it(pip.current_dir(root).env("NERITE_BIN", binary).env("SOURCE_DATE_EPOCH", epoch))
}

fn debian(root: &Path, machine: Machine, epoch: &str) -> Result<(), String> {
    let cargo = || Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    if !cargo().args(["deb", "--version"]).output().is_ok_and(|done| done.status.success()) {
        println!("no Debian package: cargo-deb is not installed (`cargo install cargo-deb`)");
        return Ok(());
    }
    let mut deb = cargo();
    deb.args(["deb", "-p", "nerite-server", "--no-build", "--no-strip", "--output", DIST]).current_dir(root);
    if machine != Machine::Here {
        deb.args(["--target", &machine.target()]);
    }
    run_it(deb.env("SOURCE_DATE_EPOCH", epoch))
}

/// Writes SHA256SUMS, so that `sha256sum --check SHA256SUMS` passes in the folder.
fn sums(dist: &Path) -> Result<(), String> {
    let entries = dist.read_dir().map_err(|cause| format!("{}: {cause}", dist.display()))?;
    let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    let text = output(Command::new("sha256sum").args(&names).current_dir(dist))?;
    print!("{text}");
    write(&dist.join("SHA256SUMS"), text.as_bytes())
}

fn anew(folder: &Path) -> Result<(), String> {
    let fault = |cause| format!("{}: {cause}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(fault)?;
    }
    fs::create_dir_all(folder).map_err(fault)
}

fn copy_all(from: &Path, to: &Path) -> Result<(), String> {
    let entries = from.read_dir().map_err(|cause| format!("{}: {cause}", from.display()))?;
    for entry in entries.flatten().filter(|entry| entry.file_name() != "__pycache__") {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() { copy_all(&from, &to)? } else { copy(&from, &to)? }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    folder_of(to)?;
    fs::copy(from, to).map(drop).map_err(|cause| format!("{} to {}: {cause}", from.display(), to.display()))
}

fn write(to: &Path, bytes: &[u8]) -> Result<(), String> {
    folder_of(to)?;
    fs::write(to, bytes).map_err(|cause| format!("{}: {cause}", to.display()))
}

fn folder_of(file: &Path) -> Result<(), String> {
    let folder = file.parent().unwrap_or(file);
    fs::create_dir_all(folder).map_err(|cause| format!("{}: {cause}", folder.display()))
}

fn run_it(command: &mut Command) -> Result<(), String> {
    let shown = format!("{command:?}");
    let status = command.status().map_err(|cause| format!("{shown}: {cause}"))?;
    if status.success() { Ok(()) } else { Err(format!("{shown}: {status}")) }
}

fn output(command: &mut Command) -> Result<String, String> {
    let shown = format!("{command:?}");
    let done = command.output().map_err(|cause| format!("{shown}: {cause}"))?;
    if !done.status.success() {
        return Err(format!("{shown}: {}: {}", done.status, String::from_utf8_lossy(&done.stderr)));
    }
    String::from_utf8(done.stdout).map_err(|cause| format!("{shown}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tarball_is_the_same_whatever_umask_the_sources_were_checked_out_with() {
        use std::os::unix::fs::PermissionsExt;

        let archives = [(0o700, 0o600), (0o775, 0o664)].map(|(executable, plain)| {
            let root = tempfile::tempdir().expect("a folder");
            let stage = root.path().join(STAGE);
            for (path, mode) in [("bin/nerite", executable), ("share/doc/README.md", plain)] {
                let file = stage.join(path);
                write(&file, path.as_bytes()).expect("a file");
                fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("its mode");
            }
            for folder in ["", "bin", "share", "share/doc"] {
                fs::set_permissions(stage.join(folder), fs::Permissions::from_mode(executable)).expect("its mode");
            }
            anew(&root.path().join(DIST)).expect("a folder");
            tarball(root.path(), "nerite-1", "1000000000").expect("an archive");
            fs::read(root.path().join(DIST).join("nerite-1.tar.gz")).expect("the archive")
        });
        assert!(archives[0] == archives[1], "modes of the sources are in the archive");
    }

    #[test]
    fn this_workspace_has_a_version() {
        assert_eq!(version_of(crate::root()).expect("a version"), env!("CARGO_PKG_VERSION"));
    }

    #[test]
    fn the_packed_readme_says_where_the_pages_are() {
        let text = readme(crate::root()).expect("a text");
        let mut paragraphs = text.split("\n\n");
        assert_eq!(paragraphs.next(), Some("# nerite"));
        assert!(
            paragraphs.next().is_some_and(|line| line.contains("<https://") && line.ends_with("/README.md>.")),
            "{text}"
        );
    }

    #[test]
    fn the_debian_package_installs_all_staged_files() {
        let manifest =
            fs::read_to_string(crate::root().join("crates/server/Cargo.toml")).expect("the server's manifest");
        let assets: Vec<&str> =
            manifest.lines().filter_map(|line| line.trim().strip_prefix("[\"../../target/package/")).collect();
        let staged = FILES.iter().chain(&PRINTED).map(|(_, to)| *to).chain(["bin/nerite", "share/nerite/examples/"]);
        // `systemd-units` installs the unit and its user, and registers them.
        for path in staged.filter(|path| !path.starts_with("lib/")) {
            assert!(assets.iter().any(|asset| asset.starts_with(path)), "{path} is in no asset of the Debian package");
        }
        for asset in assets {
            let path = asset.split(['"', '*']).next().unwrap_or_default();
            let known = FILES.iter().chain(&PRINTED).any(|(_, to)| *to == path);
            assert!(
                known || path == "bin/nerite" || path.starts_with("share/nerite/examples/"),
                "{path} is not staged"
            );
        }
        for (from, _) in FILES {
            assert!(crate::root().join(from).is_file(), "{from}");
        }
        assert!(crate::root().join("packaging/debian/postinst").is_file());
    }
}
