//! What stands in the way?
//!
//! ```text
//!   gather ─► Facts ─ memory, client, gpu ─► Verdicts ─► text | JSON
//!   /proc, probes      pure: what fails, both values, the cure
//! ```
//!
//! One topic so far, shared memory. Facts are gathered in one place and judged by functions that touch nothing, so that each
//! verdict is tested without the machine that deserves it.

mod client;
mod facts;
mod gather;
mod gpu;
mod memory;
mod verdict;

use std::path::PathBuf;
use std::process::ExitCode;

use facts::Facts;
use gather::Wanted;
use verdict::{Level, Verdict};

use crate::plain::plain;

/// What `nerite doctor --help` prints.
pub const USAGE: &str = "\
Usage: nerite doctor [topic] [options]

Says what stands in the way, and how to mend it. Without a topic, all of them.

  shm                       shared memory between clients, this host's server, and GPUs

      --client-pid N        look at this client as well: its keys, its user, its namespaces, its GPUs
      --server-pid N        the server, if it does not answer at the session socket
      --session-socket P    the server's session socket, if it is not at the default place
      --json                for programs
  -h, --help                print this

Looks from where it runs: run it on the host or beside the server, as the server's user or root. Ends with 1 if a check fails.
";

/// `nerite doctor`; `words` are those after the word `doctor`.
pub fn main(words: &[String]) -> ExitCode {
    let (wanted, json) = match read(words) {
        Ok(Some(read)) => read,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(reason) => {
            eprint!("nerite doctor: {}\n\n{USAGE}", plain(&reason));
            return ExitCode::from(2);
        }
    };
    let facts = gather::facts(&wanted);
    let verdicts = judge(&facts);
    print!("{}", if json { verdict::json("shm", &verdicts) } else { verdict::text(&about(&facts), &verdicts) });
    if verdicts.iter().any(|verdict| verdict.level == Level::Fails) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
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

fn read(words: &[String]) -> Result<Option<(Wanted, bool)>, String> {
    let (mut wanted, mut json, mut words) = (Wanted::default(), false, words.iter());
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
            "--client-pid" => wanted.client_pid = Some(number(value()?)?),
            "--server-pid" => wanted.server_pid = Some(number(value()?)?),
            "--session-socket" => wanted.socket = Some(PathBuf::from(value()?)),
            "--json" if inline.is_none() => json = true,
            "shm" => {}
            _ if flag.starts_with('-') => return Err(format!("there is no option '{word}'")),
            _ => return Err(format!("there is no topic '{word}'; shm is one")),
        }
    }
    Ok(Some((wanted, json)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &[&str], expect: Result<(Option<u32>, Option<u32>, bool), &str>) {
        let words: Vec<String> = line.iter().map(|&word| word.to_owned()).collect();
        let found = read(&words).map(|read| {
            let (wanted, json) = read.expect("no help was asked for");
            (wanted.client_pid, wanted.server_pid, json)
        });
        assert_eq!(found, expect.map_err(str::to_owned), "{line:?}");
    }

    #[test]
    fn the_command_line_is_read_or_refused() {
        check(&[], Ok((None, None, false)));
        check(&["shm", "--client-pid", "7", "--json"], Ok((Some(7), None, true)));
        check(&["--client-pid=7", "--server-pid=8"], Ok((Some(7), Some(8), false)));
        check(&["shm", "--client-pid", "me"], Err("'me' is no process's number"));
        check(&["--client-pid", "0"], Err("'0' is no process's number"));
        check(&["--client-pid"], Err("--client-pid wants a value"));
        check(&["gpu"], Err("there is no topic 'gpu'; shm is one"));
        check(&["--verbose"], Err("there is no option '--verbose'"));
    }
}
