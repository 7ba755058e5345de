//! How does an operator make a running server drain?
//!
//! By a signal, which only the server's user and root can send. No call over the network can drain a server.

use std::path::PathBuf;
use std::process::ExitCode;

use nerite_client::default_path;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::misused::{no_option, refuse};
use crate::plain::plain;
use crate::shm;

/// What `nerite drain --help` prints.
pub const USAGE: &str = "\
Usage: nerite drain [options]

Makes a running server drain: it is not ready any more, and serves requests until a signal ends that.
SIGTERM stops it then, at the earliest --drain-seconds after the draining began.

      --session-socket P    the server's session socket, if it is not at the default place
      --server-uid N        the server may be that user's, besides this one's and root's
      --pid N               the server's process, in place of a session socket
  -h, --help                print this
";

/// Which server is to drain.
#[derive(Debug, PartialEq, Eq)]
enum Server {
    Process(i32),
    AtSocket { path: PathBuf, uid: Option<u32> },
}

/// `nerite drain`; `words` are those after the word `drain`.
pub fn main(words: &[String]) -> ExitCode {
    let server = match read(words) {
        Ok(Some(server)) => server,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(reason) => return refuse("drain", &reason),
    };
    match find(&server).and_then(|pid| drain(pid).map(|()| pid)) {
        Ok(pid) => {
            println!("process {pid} drains: it is not ready, and serves requests until SIGTERM stops it");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("nerite drain: {}", plain(&reason));
            ExitCode::FAILURE
        }
    }
}

/// `None` if the words ask for help.
fn read(words: &[String]) -> Result<Option<Server>, String> {
    let (mut socket, mut uid, mut pid) = (None, None, None);
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let (name, joined) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let mut value = || joined.or_else(|| words.next()).ok_or_else(|| format!("{name} wants a value"));
        match name {
            "-h" | "--help" if joined.is_none() => return Ok(None),
            "--session-socket" => socket = Some(PathBuf::from(value()?)),
            "--server-uid" => uid = Some(number(name, value()?)?),
            "--pid" => pid = Some(number(name, value()?)?),
            _ if word.starts_with('-') => return Err(no_option(word, USAGE)),
            _ => return Err(format!("'{word}' is one word too many")),
        }
    }
    match pid {
        Some(_) if socket.is_some() || uid.is_some() => {
            Err("give --pid or a session socket, and not both: each says which server is meant".to_owned())
        }
        Some(pid) => Ok(Some(Server::Process(pid))),
        None => Ok(Some(Server::AtSocket { path: socket.unwrap_or_else(default_path), uid })),
    }
}

fn number<N: std::str::FromStr>(name: &str, value: &str) -> Result<N, String> {
    value.parse().map_err(|_| format!("{name} wants a number. Got '{value}'"))
}

fn find(server: &Server) -> Result<i32, String> {
    let (path, uid) = match server {
        Server::Process(pid) => return Ok(*pid),
        Server::AtSocket { path, uid } => (path, *uid),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start a runtime: {error}"))?;
    let pid = runtime.block_on(async { shm::connect(path, uid).await.map(|session| session.server_pid()) })?;
    pid.and_then(|pid| i32::try_from(pid).ok()).ok_or_else(|| {
        "the server's process is in another PID namespace; run this there, or beside it with --pid".to_owned()
    })
}

/// Sends SIGUSR1, but not to a process that it would end.
fn drain(pid: i32) -> Result<(), String> {
    let none = || format!("there is no process {pid}");
    let process = Some(pid).filter(|pid| *pid > 0).and_then(Pid::from_raw).ok_or_else(none)?;
    // The descriptor means this process, also if it ends and another one gets its number.
    let descriptor = pidfd_open(process, PidfdFlags::empty()).map_err(|error| match error {
        Errno::SRCH | Errno::INVAL => none(),
        error => format!("process {pid} cannot be reached: {error}"),
    })?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).map_err(|_| none())?;
    if !catches_usr1(&status) {
        return Err(format!(
            "process {pid} is no nerite server: it would be ended by SIGUSR1; `nerite shm list` names the server at a session socket"
        ));
    }
    pidfd_send_signal(&descriptor, Signal::USR1).map_err(|error| match error {
        Errno::PERM => format!("process {pid} belongs to another user; run this as the server's user or as root"),
        Errno::SRCH => none(),
        error => format!("process {pid} takes no signal: {error}"),
    })
}

/// Whether a process has a handler for SIGUSR1. `status` is its `/proc/PID/status`.
fn catches_usr1(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    mask & (1 << (Signal::USR1.as_raw() - 1)) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expect: Result<Server, &str>) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let found = read(&words).map(|found| found.expect("no help was asked for"));
        assert_eq!(found, expect.map_err(str::to_owned), "{line}");
    }

    #[test]
    fn a_server_is_named_by_its_socket_or_its_process() {
        check("", Ok(Server::AtSocket { path: default_path(), uid: None }));
        check("--session-socket=/s --server-uid 7", Ok(Server::AtSocket { path: "/s".into(), uid: Some(7) }));
        check("--pid 12", Ok(Server::Process(12)));
        check("--pid", Err("--pid wants a value"));
        check("--pid=x", Err("--pid wants a number. Got 'x'"));
        let both = "give --pid or a session socket, and not both: each says which server is meant";
        check("--pid=1 --session-socket=/s", Err(both));
        check("--pd=1", Err("there is no option '--pd'; did you mean '--pid'?"));
        check("now", Err("'now' is one word too many"));
    }

    #[test]
    fn a_process_that_sigusr1_would_end_gets_none() {
        assert!(catches_usr1("Name:\tnerite\nSigCgt:\t0000000000000200\n"));
        assert!(!catches_usr1("Name:\tsleep\nSigCgt:\t0000000000000100\n"));
        assert!(!catches_usr1(""));
        let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("a program of POSIX");
        let pid = i32::try_from(child.id()).expect("process numbers are positive");
        let refused = drain(pid).expect_err("it has no handler");
        assert!(refused.starts_with(&format!("process {pid} is no nerite server")), "{refused}");
        assert!(child.try_wait().expect("it is a child").is_none(), "it lives on");
        child.kill().and_then(|()| child.wait()).expect("it is a child");
        assert_eq!(drain(pid), Err(format!("there is no process {pid}")));
        for pid in [0, -1] {
            assert_eq!(drain(pid), Err(format!("there is no process {pid}")));
        }
    }
}
