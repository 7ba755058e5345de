//! Does the kernel hold a process to its policy?
//!
//! This program is its own `nerite`: started with the words of a policy, it confines itself. Its tests need a kernel that can confine. On another kernel
//! only the refusal is tested; with `NERITE_TEST_SANDBOX=required` they fail there. The harness takes the words that cargo and nextest give.
#![allow(clippy::unwrap_used)]
#![expect(clippy::print_stdout, reason = "a harness of its own")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use nerite_sandbox::{COMMAND, Sandbox, main as confine};

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == COMMAND) {
        return confine(words);
    }
    let tests: [(&str, fn()); 8] = [
        ("what_is_not_named_is_neither_read_nor_written", what_is_not_named_is_neither_read_nor_written),
        ("a_link_leads_nowhere_else", a_link_leads_nowhere_else),
        ("attributes_stay_as_they_are", attributes_stay_as_they_are),
        ("no_other_process_is_started_or_signalled", no_other_process_is_started_or_signalled),
        ("memory_and_files_are_limited", memory_and_files_are_limited),
        ("a_group_bounds_all_processes_of_an_instance", a_group_bounds_all_processes_of_an_instance),
        ("variables_are_those_of_the_policy", variables_are_those_of_the_policy),
        ("temporary_files_go_with_the_sandbox", temporary_files_go_with_the_sandbox),
    ];
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--list") {
        // Nextest asks a second time, for the ignored ones alone.
        let listed = if words.iter().any(|word| word == "--ignored") { &[][..] } else { &tests };
        for (name, _) in listed {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    if let Err(refusal) = sandbox("sandbox=on", "", Path::new("/usr")).check() {
        assert!(refusal.message.contains("; or set sandbox=best-effort"), "{refusal}");
        let is_required = std::env::var_os("NERITE_TEST_SANDBOX").is_some_and(|word| word == "required");
        println!("the kernel cannot confine, and says so: {refusal}");
        return if is_required { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let names: Vec<&String> = words.iter().filter(|word| !word.starts_with('-')).collect();
    for (name, test) in tests.into_iter().filter(|(name, _)| names.is_empty() || names.iter().any(|one| one == name)) {
        test();
        println!("test {name} ... ok");
    }
    ExitCode::SUCCESS
}

fn pairs(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn sandbox(settings: &str, parameters: &str, model_dir: &Path) -> Sandbox {
    let parameters = pairs(parameters);
    let parameter = |key: &str| parameters.get(key).map(String::as_str);
    Sandbox::read("python", &pairs(settings), "m", parameter, &[model_dir]).unwrap().unwrap()
}

/// Runs a script of the shell's, whose `$1` is a path.
fn ran(sandbox: &Sandbox, script: &str, path: &Path) -> Output {
    let mut command = sandbox.command("sh".as_ref(), None, &[("COLOUR", Some("blue".into()))], &[], None);
    command.args(["-c", script, "sh"]).arg(path).output().unwrap()
}

#[track_caller]
fn check(sandbox: &Sandbox, script: &str, path: &Path, expect: Result<&str, &str>) {
    let ran = ran(sandbox, script, path);
    let (output, error) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    match expect {
        Ok(text) => assert_eq!((output.trim(), ran.status.code()), (text, Some(0)), "{script}: {error}"),
        Err(text) => {
            assert!(!ran.status.success() && error.contains(text), "{script}: {output} {error} {}", ran.status);
        }
    }
}

/// Two directories: one for the model, one that is not.
fn folders() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let top = tempfile::tempdir().unwrap();
    let [model, other] = ["model", "other"].map(|name| top.path().join(name));
    for folder in [&model, &other] {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join("file"), "text").unwrap();
    }
    (top, model, other)
}

const DENIED: Result<&str, &str> = Err("ermission denied");

fn what_is_not_named_is_neither_read_nor_written() {
    let (_top, model, other) = folders();
    let alone = sandbox("sandbox=on", "", &model);
    check(&alone, "read a < $1/file || echo $a", &model, Ok("text"));
    for script in ["read a < $1/file", "echo a > $1/file", "echo a > $1/new", ": > $1/file"] {
        check(&alone, script, &other, DENIED);
    }
    check(&alone, "echo a > $1/new", &model, DENIED);
    check(&alone, "echo a > /dev/shm/nerite-test", &model, DENIED);
    check(&alone, "echo a > $TMPDIR/new && read a < $TMPDIR/new && echo $a > /dev/null; echo $a", &model, Ok("a"));
    let settings = format!("sandbox=on sandbox-read={0} sandbox-write={0}", other.display());
    let reads = sandbox(&settings, &format!("SANDBOX_READ={}", other.display()), &model);
    check(&reads, "read a < $1/file || echo $a", &other, Ok("text"));
    check(&reads, "echo a > $1/file", &other, DENIED);
    let writes = sandbox(&settings, &format!("SANDBOX_WRITE={}", other.display()), &model);
    check(&writes, "echo a > $1/file && read a < $1/file && echo $a", &other, Ok("a"));
    assert_eq!(fs::read_to_string(other.join("file")).unwrap(), "a\n");
}

fn a_link_leads_nowhere_else() {
    let (_top, model, other) = folders();
    std::os::unix::fs::symlink(other.join("file"), model.join("link")).unwrap();
    check(&sandbox("sandbox=on", "", &model), "read a < $1/link", &model, DENIED);
    // A place that became a link after it was checked.
    let named = format!("SANDBOX_WRITE={}", other.display());
    let changed = sandbox(&format!("sandbox=on sandbox-write={}", other.display()), &named, &model);
    fs::rename(&other, other.with_file_name("moved")).unwrap();
    std::os::unix::fs::symlink("/", &other).unwrap();
    let refusal = changed.check().unwrap_err().message;
    assert!(refusal.contains("cannot be opened without following a link"), "{refusal}");
}

fn attributes_stay_as_they_are() {
    let (_top, model, other) = folders();
    let alone = sandbox("sandbox=on sandbox-processes=any", "", &model);
    for script in ["chmod 777 $1/file", "touch $1/file", "chmod 777 $TMPDIR"] {
        check(&alone, script, &other, Err("ermi"));
    }
}

fn no_other_process_is_started_or_signalled() {
    let (_top, model, _) = folders();
    let alone = sandbox("sandbox=on", "", &model);
    check(&alone, "(echo a); echo b", &model, Err("ork"));
    check(&alone, "exec /bin/echo a", &model, Ok("a"));
    let more = sandbox("sandbox=on sandbox-processes=any", "", &model);
    check(&more, "(echo a); echo b", &model, Ok("a\nb"));
    let mut other = Command::new("sleep").arg("60").spawn().unwrap();
    for sandbox in [&alone, &more] {
        check(sandbox, &format!("kill {}", other.id()), &model, Err("ermitted"));
        check(sandbox, &format!("exec cat /proc/{}/environ", other.id()), &model, DENIED);
        check(sandbox, "kill -0 $$ && echo own", &model, Ok("own"));
    }
    assert!(other.try_wait().unwrap().is_none());
    other.kill().unwrap();
    other.wait().unwrap();
}

fn memory_and_files_are_limited() {
    let (_top, model, _) = folders();
    let small = sandbox("sandbox=on sandbox-memory=67108864 sandbox-file-size=1000000", "", &model);
    check(&small, "ulimit -d; ulimit -Hd; ulimit -c; ulimit -Hc", &model, Ok("65536\n65536\n0\n0"));
    for script in ["ulimit -s unlimited", "ulimit -Hs unlimited"] {
        check(&small, script, &model, Err("ermitted"));
    }
    check(&small, "exec 3<> /dev/zero", &model, DENIED);
    check(&sandbox("sandbox=on", "", &model), "exec 3<> /dev/zero && echo a", &model, Ok("a"));
    check(&small, "trap '' XFSZ; exec head -c 2000000 /dev/zero > $TMPDIR/large", &model, Err("too large"));
    check(&small, "exec head -c 999999 /dev/zero > $TMPDIR/large", &model, Ok(""));
    let takes = "exec dd if=/dev/zero of=/dev/null bs=200M count=1";
    check(&small, takes, &model, Err("memory"));
    check(&sandbox("sandbox=on", "", &model), takes, &model, Ok(""));
}

/// A group for this test, whose children have limits. The number of processes is bounded in the same way by groups of version 1.
fn group() -> Option<PathBuf> {
    let name = format!("nerite-test-{}", std::process::id());
    let old = Path::new("/sys/fs/cgroup/pids").join(&name);
    if fs::create_dir(&old).is_ok() {
        return Some(old);
    }
    let new = Path::new("/sys/fs/cgroup").join(&name);
    fs::create_dir(&new).ok()?;
    let enabled = fs::write(new.join("cgroup.subtree_control"), "+pids +memory");
    enabled.inspect_err(|_| drop(fs::remove_dir(&new))).ok().map(|()| new)
}

/// Confines a script by these words of a policy and a group.
fn grouped(base: &Path, words: &[&str], script: &str) -> Output {
    let mut command = Command::new("/proc/self/exe");
    command.arg(COMMAND).arg(format!("group={}", base.display())).args(words).args([
        "read=/usr",
        "--",
        "sh",
        "-c",
        script,
    ]);
    command.output().unwrap()
}

fn a_group_bounds_all_processes_of_an_instance() {
    let Some(base) = group() else {
        println!("no control group can be made here");
        return;
    };
    let script = "for i in 1 2 3 4 5 6 7; do sleep 0.1 & done; wait; echo all";
    let many = grouped(&base, &["processes=20"], script);
    let few = grouped(&base, &["processes=4"], script);
    let place = grouped(&base, &["processes=4"], "read a < /proc/$$/cgroup; exec cat /proc/$$/cgroup");
    let memory = base.join("memory.max").exists().then(|| {
        let takes = "exec dd if=/dev/zero of=/dev/null bs=200M count=1";
        let limit = |bytes| grouped(&base, &["processes=4", bytes], takes).status;
        (limit("group-memory=67108864"), limit("group-memory=1000000000"))
    });
    let output = grouped(&base, &["group-memory=1", "processes=4"], "echo it runs");
    let removed = fs::read_dir(&base).unwrap().flatten().filter(|entry| entry.path().is_dir());
    let removed: Vec<_> = removed.map(|entry| fs::remove_dir(entry.path())).collect();
    fs::remove_dir(&base).unwrap();

    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    assert_eq!(text(&many.stdout), "all", "{}", text(&many.stderr));
    assert!(!few.status.success() && text(&few.stderr).contains("ork"), "{}", text(&few.stderr));
    assert!(text(&place.stdout).contains("/nerite-sandbox-"), "{}", text(&place.stdout));
    match memory {
        Some((small, large)) => assert!(!small.success() && large.success(), "{small} {large}"),
        // Groups of version 1 for processes have no memory, and what cannot be held is refused.
        None => assert!(text(&output.stderr).contains("memory.max"), "{}", text(&output.stderr)),
    }
    assert!(!removed.is_empty() && removed.iter().all(Result::is_ok), "{removed:?}");
}

fn variables_are_those_of_the_policy() {
    let (_top, model, _) = folders();
    check(&sandbox("sandbox=on", "", &model), "echo $COLOUR; test $HOME = $TMPDIR && cd $HOME", &model, Ok("blue"));
}

fn temporary_files_go_with_the_sandbox() {
    let (_top, model, _) = folders();
    let sandbox = sandbox("sandbox=on", "", &model);
    let path = ran(&sandbox, "echo a > $TMPDIR/a; echo $TMPDIR", &model).stdout;
    let path = PathBuf::from(String::from_utf8(path).unwrap().trim());
    assert!(path.join("a").is_file());
    drop(sandbox);
    assert!(!path.exists());
}
