//! What on this host keeps the server, its clients or its models from working?
//!
//! ```text
//!   gather ─► Facts ─ memory, client, gpu ─► Verdicts ─┬► text | JSON
//!   /proc, probes      pure: what fails, both values, the cure
//!   the interpreter, started ─ python ─────► Verdict ───┘
//! ```
//!
//! One place gathers the facts. Pure functions judge them, so each verdict is tested without a machine that has the fault.

mod client;
mod facts;
mod gather;
mod gpu;
mod memory;
mod onnx;
mod python;
mod verdict;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use facts::Facts;
use gather::Wanted;
use nerite_python::find_python;
use verdict::{Section, Verdict};

use crate::misused::{no_option, none_of, refuse};

/// What `nerite doctor --help` prints.
pub const USAGE: &str = "\
Usage: nerite doctor [topic] [options]

Says what stands in the way, and how to fix it. Without a topic, all of them.

  shm                       shared memory between clients, this host's server, and GPUs
  python                    the Python that would run models of a server started from here; it is started to ask it
  onnx                      the engine that would run ONNX models of a server started from here

      --client-pid N        look at this client as well: its keys, its user, its namespaces, its GPUs
      --server-pid N        the server, if it does not answer at the session socket
      --session-socket P    the server's session socket, if it is not at the default place
      --server-uid N        the server there may be that user's, besides this one's and root's
      --interpreter P       the Python that --backend-config=python,interpreter=P names
      --environment P       the environment that a model names as EXECUTION_ENV_PATH, a directory or an archive
      --json                for programs
  -h, --help                print this

Looks from where it runs: run it on the host or beside the server, as the server's user or root. Ends with 1 if a check fails.
";

/// `nerite doctor`; `words` are those after the word `doctor`.
pub fn main(words: &[String]) -> ExitCode {
    let command_line = match read(words) {
        Ok(Some(command_line)) => command_line,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(reason) => {
            return refuse("doctor", &reason);
        }
    };
    let mut sections = Vec::new();
    let is_wanted = |topic| command_line.topic.is_none_or(|wanted| wanted == topic);
    if is_wanted(Topic::Memory) {
        sections.push(memory_section(&command_line));
    }
    if is_wanted(Topic::Python) {
        sections.push(python_section(&command_line));
    }
    if is_wanted(Topic::Onnx) {
        sections.push(onnx::section());
    }
    print!("{}", if command_line.json { verdict::json(&sections) } else { verdict::text(&sections) });
    if verdict::failed(&sections) > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// How long the interpreter may take to answer: as long as for a model.
const PYTHON_MAX: Duration = Duration::from_secs(30);

/// The command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct CommandLine {
    /// `None` for all.
    topic: Option<Topic>,
    wanted: Wanted,
    interpreter: Option<PathBuf>,
    environment: Option<String>,
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Topic {
    Memory,
    Python,
    Onnx,
}

fn memory_section(command_line: &CommandLine) -> Section {
    let facts = gather::facts(&command_line.wanted);
    Section { topic: "shm", about: about(&facts), verdicts: judge(&facts) }
}

fn python_section(command_line: &CommandLine) -> Section {
    let found = find_python(command_line.interpreter.as_deref(), command_line.environment.as_deref(), PYTHON_MAX);
    let verdicts =
        vec![python::judge(found, command_line.topic.is_some()), python::judge_sandbox(nerite_sandbox::probe())];
    Section { topic: "python", about: "Python models, for a server that is started from here:".into(), verdicts }
}

/// All verdicts on shared memory.
fn judge(facts: &Facts) -> Vec<Verdict> {
    let mut verdicts = memory::judge(facts);
    verdicts.extend(client::judge(facts));
    verdicts.extend(gpu::judge(facts));
    verdicts
}

fn about(facts: &Facts) -> String {
    let facts::Process { pid, uid, .. } = facts.server();
    match facts.running {
        Some(_) => format!("Shared memory, for the server of process {pid}, user {uid}:"),
        None => format!("Shared memory, for a server that user {uid} would start here:"),
    }
}

fn read(words: &[String]) -> Result<Option<CommandLine>, String> {
    let (mut command_line, mut words) = (CommandLine::default(), words.iter());
    while let Some(word) = words.next() {
        let (flag, inline) = match word.split_once('=') {
            Some((flag, value)) if flag.starts_with("--") => (flag, Some(value.to_owned())),
            _ => (word.as_str(), None),
        };
        let mut value = || inline.clone().or_else(|| words.next().cloned()).ok_or(format!("{flag} wants a value"));
        let number = |text: String| {
            let number = text.parse().ok().filter(|number: &u32| *number > 0);
            number.ok_or(format!("'{text}' is no process's number"))
        };
        match flag {
            "-h" | "--help" => return Ok(None),
            "--client-pid" => command_line.wanted.client_pid = Some(number(value()?)?),
            "--server-pid" => command_line.wanted.server_pid = Some(number(value()?)?),
            "--server-uid" => {
                let text = value()?;
                let uid = text.parse().map_err(|_| format!("'{text}' is no user's number"))?;
                command_line.wanted.server_uid = Some(uid);
            }
            "--session-socket" => command_line.wanted.socket = Some(PathBuf::from(value()?)),
            "--interpreter" => command_line.interpreter = Some(PathBuf::from(value()?)),
            "--environment" => command_line.environment = Some(value()?),
            "--json" if inline.is_none() => command_line.json = true,
            "shm" => command_line.topic = Some(Topic::Memory),
            "python" => command_line.topic = Some(Topic::Python),
            "onnx" => command_line.topic = Some(Topic::Onnx),
            _ if flag.starts_with('-') => return Err(no_option(word, USAGE)),
            _ => return Err(none_of("topic", word, &["shm", "python", "onnx"])),
        }
    }
    Ok(Some(command_line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &[&str], expect: Result<CommandLine, &str>) {
        let words: Vec<String> = line.iter().map(|&word| word.to_owned()).collect();
        let found = read(&words).map(|read| read.expect("no help was asked for"));
        assert_eq!(found, expect.map_err(str::to_owned), "{line:?}");
    }

    fn processes(client_pid: Option<u32>, server_pid: Option<u32>) -> Wanted {
        Wanted { client_pid, server_pid, ..Wanted::default() }
    }

    #[test]
    fn the_command_line_is_read_or_refused() {
        let none = CommandLine::default;
        check(&[], Ok(none()));
        let wanted = processes(Some(7), None);
        check(
            &["shm", "--client-pid", "7", "--json"],
            Ok(CommandLine { topic: Some(Topic::Memory), wanted, json: true, ..none() }),
        );
        let wanted = processes(Some(7), Some(8));
        check(&["--client-pid=7", "--server-pid=8"], Ok(CommandLine { wanted, ..none() }));
        check(
            &["python", "--interpreter=/p", "--environment", "/e"],
            Ok(CommandLine {
                topic: Some(Topic::Python),
                interpreter: Some("/p".into()),
                environment: Some("/e".into()),
                ..none()
            }),
        );
        check(&["onnx"], Ok(CommandLine { topic: Some(Topic::Onnx), ..none() }));
        check(&["shm", "--client-pid", "me"], Err("'me' is no process's number"));
        check(&["--client-pid", "0"], Err("'0' is no process's number"));
        let wanted = Wanted { server_uid: Some(9), ..Wanted::default() };
        check(&["--server-uid=9"], Ok(CommandLine { wanted, ..none() }));
        check(&["--server-uid", "me"], Err("'me' is no user's number"));
        check(&["--client-pid"], Err("--client-pid wants a value"));
        check(&["gpu"], Err("there is no topic 'gpu'"));
        check(&["--verbose"], Err("there is no option '--verbose'"));
    }
}
