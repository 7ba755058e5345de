//! Is an environment unpacked once, used by the right models, and removed in the end?
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;

const LONG: Duration = Duration::from_mins(1);

/// Packs an environment whose interpreter is a shell script. `files` are its scripts by their names.
fn pack(folder: &Path, files: &[(&str, &str)]) -> PathBuf {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, script) in files {
        let mut header = tar::Header::new_gnu();
        let text = format!("#!/bin/sh\n{script}\n");
        header.set_size(text.len() as u64);
        header.set_mode(0o755);
        builder.append_data(&mut header, name, text.as_bytes()).unwrap();
    }
    let path = folder.join("env.tar");
    fs::write(&path, builder.into_inner().unwrap()).unwrap();
    path
}

fn find(environments: &Environments, named: &str, model_dir: &Path) -> Result<Interpreter, String> {
    environments
        .interpreter(named, model_dir, &SearchEnvironment::of_process(), RunBounds::within(LONG), None)
        .map_err(|none| none.found)
}

fn shown_path(archive: &Path) -> String {
    archive.display().to_string()
}

/// The directories with unpacked environments of this process.
fn unpacked_directories() -> Vec<PathBuf> {
    let own = format!("{PREFIX}{}-", std::process::id());
    let entries = fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&own))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

/// Tests check the directories of the whole process, so they run one at a time.
fn turn() -> std::sync::MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn an_archive_is_unpacked_once_for_all_models_and_removed_in_the_end() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let archive = pack(folder.path(), &[("bin/python3", "echo here")]);
    let environments = Environments::default();
    let first = find(&environments, &shown_path(&archive), Path::new("/models/a")).unwrap();
    let second = find(&environments, "$$TRITON_MODEL_DIRECTORY/env.tar", folder.path()).unwrap();
    assert_eq!(first.program, second.program);
    let [root] = &unpacked_directories()[..] else { panic!("{:?}", unpacked_directories()) };
    assert_eq!(first.program, root.canonicalize().unwrap().join("bin/python3"));
    assert_eq!(root.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    let ran = run(first.command(), RunBounds::within(LONG)).unwrap();
    assert_eq!(ran.output, "here\n");
    drop((first, second));
    assert_eq!(unpacked_directories().len(), 1, "a model that comes again finds it");
    drop(environments);
    assert_eq!(unpacked_directories(), [] as [PathBuf; 0]);
}

#[test]
fn the_end_of_the_server_removes_environments_that_are_in_use() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let environments = Environments::default();
    let _old = find(&environments, &shown_path(&pack(folder.path(), &[("bin/python3", "")])), Path::new("/")).unwrap();
    let _new =
        find(&environments, &shown_path(&pack(folder.path(), &[("bin/python3", "echo new")])), Path::new("/")).unwrap();
    assert_eq!(unpacked_directories().len(), 2);
    environments.end();
    assert_eq!(unpacked_directories().len(), 0);
}

#[test]
fn models_that_load_side_by_side_wait_for_one_unpacking() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let archive = shown_path(&pack(folder.path(), &[("bin/python3", ""), ("bin/conda-unpack", "")]));
    let environments = Environments::default();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| find(&environments, &archive, Path::new("/")).unwrap());
        }
    });
    assert_eq!(unpacked_directories().len(), 1);
}

#[test]
fn an_archive_that_was_replaced_is_unpacked_anew_and_the_old_one_kept_while_it_is_used() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let environments = Environments::default();
    let old = find(&environments, &shown_path(&pack(folder.path(), &[("bin/python3", "")])), Path::new("/")).unwrap();
    let new =
        find(&environments, &shown_path(&pack(folder.path(), &[("bin/python3", "echo new")])), Path::new("/")).unwrap();
    assert_ne!(old.program, new.program);
    assert!(old.program.exists());
    drop(old);
    assert_eq!(unpacked_directories().len(), 1);
    drop((environments, new));
    assert_eq!(unpacked_directories().len(), 0);
}

#[track_caller]
fn check_refused(files: &[(&str, &str)], expect: &str) {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let archive = shown_path(&pack(folder.path(), files));
    let environments = Environments::default();
    let message = find(&environments, &archive, Path::new("/")).unwrap_err();
    let expect = format!("{expect} (EXECUTION_ENV_PATH '{archive}')");
    let temporary = std::env::temp_dir().canonicalize().unwrap().join(format!("{PREFIX}{}-0", std::process::id()));
    assert_eq!(message.replace(&temporary.display().to_string(), "~"), expect);
    assert_eq!(unpacked_directories(), [] as [PathBuf; 0], "nothing is left half done");
}

#[test]
fn an_unusable_environment_is_refused_and_removed() {
    check_refused(
        &[("environment/bin/python3", "")],
        "Path ~/bin/activate does not exist. The Python environment should contain an 'activate' script. (Nor is there a \
         bin/python3; bin must be at the top: `tar czf environment.tar.gz -C environment .`, or conda-pack)",
    );
    check_refused(
        &[("bin/python3", ""), ("bin/python3/x", "")],
        "the environment cannot be unpacked: an entry of it lies behind 'bin/python3', which is no directory",
    );
    check_refused(
        &[("bin/python3", "echo no prefix >&2; exit 3"), ("bin/conda-unpack", "")],
        "its bin/conda-unpack ended with code 3, and printed \"no prefix\"",
    );
}

#[test]
fn conda_unpack_is_run_by_the_environments_own_python_and_only_once() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let count = folder.path().join("count");
    let script = format!("echo \"$1\" >> {}", count.display());
    let archive = shown_path(&pack(folder.path(), &[("bin/python3", &script), ("bin/conda-unpack", "")]));
    let environments = Environments::default();
    for _ in 0..2 {
        find(&environments, &archive, Path::new("/")).unwrap();
    }
    let [root] = &unpacked_directories()[..] else { panic!("{:?}", unpacked_directories()) };
    let expect = format!("{}/bin/conda-unpack\n", root.canonicalize().unwrap().display());
    assert_eq!(fs::read_to_string(count).unwrap(), expect);
}

#[test]
fn a_conda_unpack_that_hangs_is_ended() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let archive = pack(folder.path(), &[("bin/python3", "echo begun; sleep 600"), ("bin/conda-unpack", "")]);
    let environments = Environments::default();
    // Long enough for the program to begin, even on a busy machine.
    let at_most = Duration::from_secs(2);
    let found = environments.interpreter(
        &shown_path(&archive),
        Path::new("/"),
        &SearchEnvironment::of_process(),
        RunBounds::within(at_most),
        None,
    );
    let message = found.unwrap_err().found;
    assert!(
        message.starts_with("its bin/conda-unpack did not end within 2 seconds, and printed \"begun\"; "),
        "{message}"
    );
    assert_eq!(unpacked_directories().len(), 0);
}

#[test]
fn a_missing_environment_is_refused_with_tritons_text() {
    let message = find(&Environments::default(), "/nonexistent/env.tar.gz", Path::new("/")).unwrap_err();
    assert_eq!(
        message,
        "Failed to get the canonical path for /nonexistent/env.tar.gz. No such file or directory (os error 2) \
         (EXECUTION_ENV_PATH '/nonexistent/env.tar.gz')"
    );
    let message = find(&Environments::default(), "/dev/null", Path::new("/")).unwrap_err();
    assert!(message.starts_with("an environment is a directory or a tar file, and this is neither"), "{message}");
}

#[test]
fn a_directory_is_used_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let python = folder.path().join("own/bin/python3");
    fs::create_dir_all(python.parent().unwrap()).unwrap();
    fs::write(&python, "").unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let found = find(&Environments::default(), "$$TRITON_MODEL_DIRECTORY/own", folder.path()).unwrap();
    assert_eq!(found.program, python.canonicalize().unwrap());
    assert!(python.exists());
}

#[test]
fn directories_of_killed_servers_are_removed_and_those_of_running_ones_stay() {
    let folder = tempfile::tempdir().unwrap();
    let (dead, foreign) = (folder.path().join("nerite-python-1-0"), folder.path().join("nerite-other"));
    for folder in [&dead, &foreign] {
        fs::create_dir_all(folder.join("bin")).unwrap();
    }
    let living = Unpacked::make(PREFIX, folder.path()).unwrap();
    let next = Unpacked::make(PREFIX, folder.path()).unwrap();
    assert_ne!(living.path(), next.path());
    Unpacked::sweep(PREFIX, folder.path());
    assert!(!dead.exists());
    assert!(living.path().exists() && next.path().exists() && foreign.exists());
}
