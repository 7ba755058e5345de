//! How does a process confine itself before it becomes a model's program?
//!
//! `nerite confine <policy> -- <program> <arguments>`. It has one thread, and nothing but this function runs in it. The order matters: for a user
//! namespace files of `/proc` are written, for Landlock paths are opened, and after the filter some calls are refused.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::process::{Signal, set_parent_process_death_signal};

use crate::calls::{self, NoFilter};
use crate::capabilities;
use crate::files::{self, NoFiles};
use crate::groups::{self, NoGroup};
use crate::limits;
use crate::policy::{Policy, Processes};
use crate::processes::{self, NoCount};
use crate::program::{self, COMMAND, REFUSED};

/// The exit status if the program could not be run, as in shells.
const NO_PROGRAM: u8 = 126;

/// Why a process cannot be confined as the policy wants.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("'{0}' is no word of a policy; servers start this themselves")]
    Word(String),
    #[error("the process cannot be bound to its server: {0}")]
    Parent(io::Error),
    #[error("the memory of its processes together cannot be limited by a control group: {0}")]
    Group(NoGroup),
    #[error("{0}")]
    Processes(#[from] NoCount),
    #[error("the limits on memory and files cannot be set: {0}")]
    Limits(io::Error),
    #[error("{0}")]
    Files(#[from] NoFiles),
    #[error("capabilities cannot be dropped: {0}")]
    Capabilities(io::Error),
    #[error("{0}")]
    Calls(#[from] NoFilter),
}

/// `nerite confine`, followed by these words. Returns only if it could not become the program, or if none was given. Without a program it prints its
/// name, the restrictions that are in force, and those that are missing, one line each.
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "this is a program; its server reads what it says")]
pub fn main(words: impl Iterator<Item = OsString>) -> ExitCode {
    let confined = Policy::read_words(words)
        .map_err(|word| Refusal::Word(word.display().to_string()))
        .and_then(|(policy, rest)| Ok((confine(&policy)?, policy, rest)));
    let (in_force, policy, mut rest) = match confined {
        Ok(confined) => confined,
        Err(refusal) => {
            eprintln!("{refusal}");
            return ExitCode::from(REFUSED);
        }
    };
    let Some(program) = rest.next() else {
        println!("{}", program::NAME);
        println!("{}", in_force.held());
        println!("{}", in_force.missing());
        return ExitCode::SUCCESS;
    };
    let error = become_program(&policy, &program, rest);
    eprintln!("nerite {COMMAND}: '{}' cannot be run in its sandbox: {error}", program.display());
    ExitCode::from(NO_PROGRAM)
}

fn become_program(policy: &Policy, program: &OsStr, arguments: impl Iterator<Item = OsString>) -> io::Error {
    let mut command = Command::new(program);
    command.args(arguments);
    policy.arg0.iter().for_each(|arg0| _ = command.arg0(arg0));
    for (name, value) in &policy.variables {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.exec()
}

/// The restrictions that are in force for a process.
struct InForce {
    abi: Option<i32>,
    has_scopes: bool,
    has_filter: bool,
    is_counted: bool,
    group: Result<bool, NoGroup>,
    policy: Policy,
}

fn confine(policy: &Policy) -> Result<InForce, Refusal> {
    // It ends with its server. The program that it becomes sets this again. Until then this stays in force, because an exec that gains no rights
    // keeps it.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| Refusal::Parent(error.into()))?;
    let group = match groups::join(policy) {
        Err(why) if policy.group_memory_bytes.is_some() && !policy.is_best_effort => return Err(Refusal::Group(why)),
        group => group,
    };
    // Without a control group, a user namespace counts the processes.
    let is_counted = matches!(group, Ok(true)) || processes::restrict(policy)?;
    limits::restrict(policy).map_err(Refusal::Limits)?;
    let held = files::restrict(policy)?;
    capabilities::drop_all().map_err(Refusal::Capabilities)?;
    let has_filter = match calls::restrict(policy, held.has_scopes) {
        Ok(()) => true,
        Err(_) if policy.is_best_effort => false,
        Err(error) => return Err(error.into()),
    };
    Ok(InForce { abi: held.abi, has_scopes: held.has_scopes, has_filter, is_counted, group, policy: policy.clone() })
}

impl InForce {
    /// The restrictions that are in force, as the log names them.
    fn held(&self) -> Listed {
        let policy = &self.policy;
        let bytes = |what: &str, bytes: Option<u64>| bytes.map(|bytes| format!("{what} {bytes} bytes (rlimit)"));
        let sockets = (self.has_filter && !policy.has_network).then(|| "no sockets (seccomp)".to_owned());
        let processes = match policy.processes {
            Processes::Itself if self.has_filter => Some("no other process (seccomp)".to_owned()),
            Processes::AtMost(count) if self.is_counted => {
                let by = match &self.group {
                    Ok(true) => "control group".to_owned(),
                    Ok(false) => "rlimit in a user namespace".to_owned(),
                    Err(why) => format!("rlimit in a user namespace, for there is no control group: {why}"),
                };
                Some(format!("{count} processes and threads ({by})"))
            }
            _ => None,
        };
        Listed(vec![
            self.abi.map(|abi| format!("files and tracing (Landlock ABI {abi})")),
            self.keeps_signals().map(|by| format!("signals ({by})")),
            self.has_filter.then(|| "attributes of files, other processes (seccomp)".to_owned()),
            sockets,
            processes,
            bytes("memory of", policy.memory_bytes),
            policy
                .group_memory_bytes
                .filter(|_| matches!(self.group, Ok(true)))
                .map(|bytes| format!("memory of its processes together {bytes} bytes (control group)")),
            bytes("files of at most", policy.file_bytes),
            Some("no capabilities".to_owned()),
        ])
    }

    /// The restrictions of the policy that are not in force.
    fn missing(&self) -> Listed {
        let policy = &self.policy;
        let without = |is: bool, what: &str| is.then(|| what.to_owned());
        Listed(vec![
            without(self.abi.is_none(), "files and tracing (no Landlock)"),
            without(self.abi.is_some_and(|abi| abi < 3), "truncation of files (Landlock older than ABI 3)"),
            without(self.keeps_signals().is_none(), "signals to others (Landlock older than ABI 6)"),
            without(
                policy.group_memory_bytes.is_some() && !matches!(self.group, Ok(true)),
                "memory of its processes together (no control group)",
            ),
            without(!self.has_filter, "sockets, attributes of files, other processes (no seccomp)"),
            without(
                !self.is_counted || (policy.processes == Processes::Itself && !self.has_filter),
                "the number of processes",
            )
            .filter(|_| policy.processes != Processes::Any),
        ])
    }

    fn keeps_signals(&self) -> Option<&'static str> {
        if self.has_scopes {
            Some("Landlock")
        } else {
            (self.has_filter && self.policy.processes == Processes::Itself).then_some("seccomp")
        }
    }
}

/// Words of which some do not apply.
struct Listed(Vec<Option<String>>);

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<&str> = self.0.iter().flatten().map(String::as_str).collect();
        f.write_str(&words.join(", "))
    }
}
