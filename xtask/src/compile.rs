//! How is the program of a release compiled, and how does it run where it is made?
//!
//! For another machine than this one a program runs under an emulator, because it prints its own manual page and completions, and a release must have
//! run once. Debian's packages for that are gcc-aarch64-linux-gnu, which brings the C library and the linker, and qemu-user or qemu-user-static.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::aarch64;

/// A separate build directory, because the flags differ from those of a development build.
const BUILD: &str = "target/shipped";
/// Tells the program that it is part of a release: it has no folder of sources.
const OF_RELEASE: &str = "NERITE_RELEASE";
/// The library for programs that are written for Triton's, which a build puts beside the program. A program that is given may lack it.
pub const LIBRARY: &str = "libtritonserver.so";
/// Emulators of aarch64, by preference.
const EMULATORS: [&str; 2] = ["qemu-aarch64", "qemu-aarch64-static"];
/// Where Debian puts the C library of aarch64 on other machines.
const SYSTEM: &str = "/usr/aarch64-linux-gnu";

/// The machine for which a release is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// That on which it is made.
    Here,
    /// aarch64 with Linux and glibc, from another machine.
    Aarch64,
}

impl Machine {
    /// The machine of one of Rust's targets, or why there can be no release for it from here.
    pub fn of_target(target: &str) -> Result<Machine, String> {
        if target == Machine::Here.target() {
            return Ok(Machine::Here);
        }
        if target != aarch64::TARGET {
            return Err(format!("'{target}' is unknown: {} or {}", Machine::Here.target(), aarch64::TARGET));
        }
        Ok(Machine::Aarch64)
    }

    /// Its name in the kernel and in the names of packages.
    pub fn name(self) -> &'static str {
        match self {
            Machine::Here => std::env::consts::ARCH,
            Machine::Aarch64 => "aarch64",
        }
    }

    /// Rust's name of it.
    pub fn target(self) -> String {
        format!("{}-unknown-linux-gnu", self.name())
    }

    /// The C compiler that makes programs for it.
    pub fn compiler(self) -> &'static str {
        match self {
            Machine::Here => "cc",
            Machine::Aarch64 => aarch64::COMPILER,
        }
    }

    /// What stands before a program of this machine to run it here; nothing if it runs as it is.
    pub fn runner(self) -> Result<Vec<&'static str>, String> {
        if self == Machine::Here {
            return Ok(Vec::new());
        }
        let runs = |emulator: &&&str| {
            let status = Command::new(emulator).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
            status.is_ok_and(|status| status.success())
        };
        let emulator =
            EMULATORS.iter().find(runs).ok_or("an emulator is missing; Debian's package qemu-user brings it")?;
        Ok(vec![emulator, "-L", SYSTEM])
    }

    /// A command that runs a program of this machine.
    pub fn run(self, program: &Path) -> Result<Command, String> {
        let runner = self.runner()?;
        let Some((emulator, words)) = runner.split_first() else { return Ok(Command::new(program)) };
        let mut command = Command::new(emulator);
        command.args(words).arg(program);
        Ok(command)
    }
}

/// Compiles the program and the library for programs, and returns where the program is.
pub fn build(root: &Path, machine: Machine) -> Result<PathBuf, String> {
    if let Some(missing) = (machine == Machine::Aarch64).then(|| aarch64::missing(root)).flatten() {
        return Err(missing);
    }
    let crates = std::env::var_os("CARGO_HOME").map_or_else(|| home().join(".cargo"), PathBuf::from);
    let mut cargo = release_build(root, &crates);
    cargo.args(["-p", "nerite-server", "-p", "nerite-inprocess"]);
    let mut built = root.join(BUILD);
    if machine == Machine::Aarch64 {
        cargo.args(["--target", aarch64::TARGET]).env(aarch64::LINKER, aarch64::COMPILER);
        built.push(aarch64::TARGET);
    }
    let status = cargo.status().map_err(|cause| format!("cargo build: {cause}"))?;
    if !status.success() {
        return Err(format!("cargo build of a release: {status}"));
    }
    let program = built.join("release/nerite");
    for made in [&program, &program.with_file_name(LIBRARY)] {
        check_paths(made, &[root, &crates])?;
    }
    Ok(program)
}

/// A build of a release of the workspace at `root`, to which only packages and a target are to be added. The crates from elsewhere lie in `crates`.
fn release_build(root: &Path, crates: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--release", "--locked", "--target-dir", BUILD]).current_dir(root);
    cargo.env("CARGO_ENCODED_RUSTFLAGS", reproducible(root, crates).join("\u{1f}")).env(OF_RELEASE, "1");
    cargo
}

/// The compiler's flags with which the program does not depend on where its sources and the crates from elsewhere lie.
pub fn reproducible(root: &Path, crates: &Path) -> [String; 2] {
    [(root, "/nerite"), (crates, "/cargo")].map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()))
}

/// Whether a program names none of these folders of the machine that made it. With one of them its bytes would depend on where it was made.
fn check_paths(program: &Path, folders: &[&Path]) -> Result<(), String> {
    let bytes = fs::read(program).map_err(|cause| format!("{}: {cause}", program.display()))?;
    for folder in folders {
        let name = folder.as_os_str().as_encoded_bytes();
        if let Some(at) = bytes.windows(name.len()).position(|window| window == name) {
            let rest = &bytes[at..bytes.len().min(at + 120)];
            let text = String::from_utf8_lossy(rest);
            return Err(format!("{} names a folder of this machine: {text}", program.display()));
        }
    }
    Ok(())
}

fn home() -> PathBuf {
    std::env::var_os("HOME").map_or_else(|| "/".into(), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_names_a_folder_of_this_machine_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("program");
        fs::write(&program, b"\x7fELF /nerite/crates/a.rs").expect("a file");
        check_paths(&program, &[folder.path(), Path::new("/home/somebody/.cargo")]).expect("it names neither");
        fs::write(&program, [b"\x7fELF \0", folder.path().join("a.rs").as_os_str().as_encoded_bytes()].concat())
            .expect("a file");
        let why = check_paths(&program, &[folder.path()]).expect_err("it names one");
        assert!(why.contains("names a folder of this machine") && why.contains("a.rs"), "{why}");
    }

    #[test]
    fn machines_are_known_by_rusts_names() {
        assert_eq!(Machine::of_target(&Machine::Here.target()), Ok(Machine::Here));
        assert_eq!(Machine::of_target("aarch64-unknown-linux-gnu").map(Machine::name), Ok("aarch64"));
        let why = Machine::of_target("riscv64gc-unknown-linux-gnu").expect_err("unknown");
        assert!(why.contains("'riscv64gc-unknown-linux-gnu' is unknown"), "{why}");
        assert_eq!(Machine::Here.runner(), Ok(Vec::new()));
    }

    #[test]
    fn the_same_sources_in_two_folders_give_the_same_program() {
        let scratch = tempfile::tempdir().expect("a folder");
        let programs = ["first", "second"].map(|name| {
            let folder = scratch.path().join(name);
            let (root, crates) = (folder.join("root"), folder.join("crates"));
            // Both folders are in the program without the flags: those of the panics.
            let source =
                format!("#[path = {:?}] mod other; fn main() {{ other::fail(); panic!() }}", crates.join("other.rs"));
            for (path, text) in
                [(root.join("main.rs"), source.as_str()), (crates.join("other.rs"), "pub fn fail() { panic!() }")]
            {
                fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
                fs::write(path, text).expect("a file");
            }
            let mut compiler = Command::new("rustc");
            compiler.args(reproducible(&root, &crates)).args(["-O", "--crate-name=same"]);
            let done =
                compiler.arg(root.join("main.rs")).arg("-o").arg(folder.join("same")).status().expect("rustc starts");
            assert!(done.success(), "it compiles");
            check_paths(&folder.join("same"), &[&root, &crates]).expect("neither folder is in it");
            fs::read(folder.join("same")).expect("a program")
        });
        assert!(programs[0] == programs[1], "the folder is in the program");
    }
    /// A workspace of `nerite-locks` and a program that uses it, with the profiles of this one, and a source in `crates`.
    fn small_workspace(root: &Path, crates: &Path) {
        let put = |path: PathBuf, text: &str| {
            fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        let read = |path: &str| fs::read_to_string(crate::root().join(path)).expect("a file of this workspace");
        let manifest = read("Cargo.toml");
        let (_, shared) = manifest.split_once("[workspace.package]").expect("what all crates share");
        let members = "[workspace]\nresolver = \"3\"\nmembers = [\"locks\", \"same\"]\n";
        put(root.join("Cargo.toml"), &format!("{members}[workspace.package]{shared}"));
        let version = env!("CARGO_PKG_VERSION");
        let locked = format!(
            "version = 4\n\n[[package]]\nname = \"nerite-locks\"\nversion = \"{version}\"\n\n\
             [[package]]\nname = \"same\"\nversion = \"1.0.0\"\ndependencies = [\n \"nerite-locks\",\n]\n"
        );
        put(root.join("Cargo.lock"), &locked);
        for path in ["Cargo.toml", "src/lib.rs", "src/counted.rs", "src/counter.rs"] {
            put(root.join("locks").join(path), &read(&format!("crates/locks/{path}")));
        }
        let package = "[package]\nname = \"same\"\nversion = \"1.0.0\"\nedition = \"2024\"\n";
        put(
            root.join("same/Cargo.toml"),
            &format!("{package}[dependencies]\nnerite-locks = {{ path = \"../locks\" }}\n"),
        );
        // Without the flags the place of this panic names the folder.
        put(crates.join("other.rs"), "pub fn fail() { panic!() }");
        let uses = "fn main() { assert!(nerite_locks::counts().is_empty()); other::fail() }";
        put(root.join("same/src/main.rs"), &format!("#[path = {:?}] mod other; {uses}", crates.join("other.rs")));
    }

    #[test]
    #[ignore = "long: two builds"]
    fn a_release_build_of_the_same_workspace_in_two_folders_gives_the_same_program() {
        let scratch = tempfile::tempdir().expect("a folder");
        let programs = ["first", "a_second_with_a_longer_name"].map(|name| {
            let folder = scratch.path().join(name);
            let (root, crates) = (folder.join("root"), folder.join("crates"));
            small_workspace(&root, &crates);
            let done = release_build(&root, &crates).args(["--offline", "--quiet", "-p", "same"]).status();
            assert!(done.expect("cargo starts").success(), "it compiles");
            let program = root.join(BUILD).join("release/same");
            check_paths(&program, &[&root, &crates]).expect("neither folder is in it");
            fs::read(program).expect("a program")
        });
        assert!(programs[0] == programs[1], "the folder is in the program");
    }
}
