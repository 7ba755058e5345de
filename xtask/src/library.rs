//! Is the library for programs what they link to?
//!
//! Looked at as users get it: its name, its functions, and a program in C that links to it and serves a model with it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::compile::Machine;

/// The name that programs ask the loader for.
const SONAME: &str = "libtritonserver.so";
/// Where the functions are written.
const CALLS: &str = "crates/cabi/src/calls";
/// The program, and the backend of the model that it serves.
const PROGRAM: &str = "tests/programs/in_process.c";
const BACKEND: &str = "tests/backends/sample.c";
/// Its models: what the program asks them is written there.
const MODELS: [(&str, &str); 2] = [("add", "add_sub"), ("fail", "fail")];
/// What the program prints of an inference whose outputs lie where it wants them.
const ANSWER: &str = "infer: add 1 '7' OUT FP32[4] ours 11 22 33 44 OUT1 FP32[4] ours -9 -18 -27 -36; 1 responses, 2 places, 2 freed, 1 released";

/// Checks the library, with what is below `root`, in a folder of its own in `scratch`.
pub fn check(root: &Path, library: &Path, scratch: &Path, machine: Machine) -> Result<(), String> {
    let of = |reason: String| format!("{}: {reason}", library.display());
    let dynamic = output(Command::new("readelf").args(["--dynamic", "--wide"]).arg(library))?;
    if !dynamic.lines().any(|line| line.contains("(SONAME)") && line.contains(&format!("[{SONAME}]"))) {
        return Err(of(format!("its SONAME is not {SONAME}")));
    }
    let symbols = output(Command::new("nm").args(["--dynamic", "--defined-only", "--format=posix"]).arg(library))?;
    let exported: BTreeSet<&str> = symbols.lines().filter_map(|line| line.split(' ').next()).collect();
    let written = written(root)?;
    let missing: Vec<_> = written.iter().filter(|name| !exported.contains(name.as_str())).collect();
    let more: Vec<_> = exported.iter().filter(|name| !written.contains(**name)).collect();
    if !missing.is_empty() || !more.is_empty() {
        return Err(of(format!("it lacks the functions {missing:?}, and exports besides {more:?}")));
    }
    run_program(root, library, scratch, machine).map_err(of)
}

/// The functions that the sources export: each stands at the beginning of a line.
fn written(root: &Path) -> Result<BTreeSet<String>, String> {
    let folder = root.join(CALLS);
    let entries = folder.read_dir().map_err(|cause| format!("{}: {cause}", folder.display()))?;
    let mut names = BTreeSet::new();
    for entry in entries.flatten().filter(|entry| entry.path().extension().is_some_and(|end| end == "rs")) {
        let path = entry.path();
        let text = fs::read_to_string(&path).map_err(|cause| format!("{}: {cause}", path.display()))?;
        let quoted = text.lines().filter_map(|line| line.trim_start().strip_prefix('"')?.split('"').next());
        names.extend(quoted.filter(|name| name.starts_with("TRITON")).map(str::to_owned));
    }
    if names.is_empty() { Err(format!("no functions are in {}", folder.display())) } else { Ok(names) }
}

fn run_program(root: &Path, library: &Path, scratch: &Path, machine: Machine) -> Result<(), String> {
    let write = |path: &Path, text: &str| {
        fs::create_dir_all(path.parent().unwrap_or(path))
            .and_then(|()| fs::write(path, text))
            .map_err(|cause| format!("{}: {cause}", path.display()))
    };
    let models = scratch.join("models");
    for (model, mode) in MODELS {
        let tensors = |side: &str, stem: &str| {
            format!(
                "{side} [{{ name: \"{stem}\" data_type: TYPE_FP32 dims: [-1] }}, {{ name: \"{stem}1\" data_type: TYPE_FP32 dims: [-1] }}]\n"
            )
        };
        let text = format!(
            "backend: \"sample\"\n{}{}parameters {{ key: \"mode\" value {{ string_value: \"{mode}\" }} }}\n",
            tensors("input", "IN"),
            tensors("output", "OUT")
        );
        write(&models.join(model).join("config.pbtxt"), &text)?;
        write(&models.join(model).join("1/empty"), "")?;
    }
    let backends = scratch.join("backends");
    let backend = backends.join("sample/libtriton_sample.so");
    write(&backend, "")?;
    output(
        Command::new(machine.compiler())
            .args(["-O1", "-fPIC", "-shared", "-o"])
            .arg(&backend)
            .arg(root.join(BACKEND))
            .arg("-lpthread"),
    )?;
    let program = scratch.join("in_process");
    let folder = library.parent().unwrap_or(library).display().to_string();
    output(Command::new(machine.compiler()).args(["-O1", "-o"]).arg(&program).arg(root.join(PROGRAM)).args([
        format!("-L{folder}"),
        "-ltritonserver".to_owned(),
        format!("-Wl,-rpath,{folder}"),
        "-lpthread".to_owned(),
    ]))?;
    let printed = output(machine.run(&program)?.arg("serve").args([&models, &backends]))?;
    if printed.lines().any(|line| line == ANSWER) {
        return Ok(());
    }
    Err(format!("a program that links to it prints no line\n{ANSWER}\nbut\n{printed}"))
}

fn output(command: &mut Command) -> Result<String, String> {
    let shown = format!("{command:?}");
    let done =
        command.output().map_err(|cause| format!("{shown}: {cause}; the library is checked with gcc and binutils"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if done.status.success() {
        return Ok(text(&done.stdout));
    }
    Err(format!("{shown}: {}\n{}{}", done.status, text(&done.stdout), text(&done.stderr)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_functions_in_the_sources_are_those_of_both_headers() {
        let written = written(crate::root()).expect("the sources are there");
        // As `nerite-cabi` counts them.
        assert_eq!(written.len(), 264);
        assert!(written.contains("TRITONSERVER_ServerNew") && written.contains("TRITONBACKEND_StateNew"));
    }
}
