//! What does an operator type?
//!
//! The program `nerite`, and the same server inside another program ([`InProcess`]), which speaks no protocol:
//!
//! ```no_run
//! use nerite_cabi::{ServerCalls, ServerReports};
//! use nerite_server::InProcess;
//!
//! let server = InProcess::start(&["--model-repository=models".to_owned()])?;
//! assert!(server.is_ready()?);
//! server.stop()?;
//! # Ok::<(), nerite_request::Status>(())
//! ```

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program prints")]
#![forbid(unsafe_code)]

mod certificates;
mod completions;
mod config;
mod demo;
mod doctor;
mod flags;
mod in_process;
mod logger;
mod manual;
mod model;
mod panics;
mod place;
mod plain;
mod ready;
mod reports;
mod serve;
mod settings;
mod shm;
mod tables;
mod top;
mod worker;

use std::path::Path;
use std::process::ExitCode;

use flags::Command;
pub use in_process::InProcess;
use nerite_config::{did_you_mean, nearest};

/// What `nerite help` prints.
pub const HELP: &str = "\
nerite serves models to programs on the same host through shared memory, and to everything that speaks to Triton.

  nerite serve --model-repository DIR [flags]   serve the models of a repository; `nerite serve --help` lists the flags
  nerite shm list|show|drop|pools|sessions      look at a running server's shared memory; `nerite shm --help`
  nerite doctor [shm|python] [--client-pid N]   say what stands in the way, and how to mend it
  nerite demo [--exit]                          see a model answer through shared memory, with latencies and copies
  nerite config check|show                      check a file of settings, or print those in effect; `nerite config --help`
  nerite ready [URL]                            ask a running server whether it is ready; ends with 0 or 1
  nerite top [--url URL] [--once]               watch a running server's models, queues, copies and shared memory
  nerite model run DIR [options]                run a Python model in the terminal; `nerite model --help`
  nerite completions bash|zsh|fish              print what a shell completes commands and flags by
  nerite man                                    print the manual page
  nerite version                                print the version

Started under the name `tritonserver`, the binary takes the flags of `nerite serve` directly.
";

/// The program `nerite`.
pub fn main() -> ExitCode {
    nerite_ort::disable_telemetry();
    nerite_memory::fit_heap();
    let words: Vec<String> = std::env::args().collect();
    let program = words.first().and_then(|word| Path::new(word).file_name()).and_then(|name| name.to_str());
    let rest = words.get(1..).unwrap_or_default();
    if program == Some("tritonserver") {
        return serve::main(Command::Tritonserver, rest);
    }
    let Some((command, rest)) = rest.split_first() else {
        print!("{HELP}");
        return ExitCode::from(2);
    };
    match command.as_str() {
        "serve" => serve::main(Command::Serve, rest),
        "shm" => shm::main(rest),
        "doctor" => doctor::main(rest),
        "demo" => demo::main(rest),
        "config" => config::main(rest),
        "ready" => ready::main(rest),
        "top" => top::main(rest),
        "model" => model::main(rest),
        "completions" => completions::main(rest),
        "man" => manual::main(rest),
        // Not in the help: servers start it.
        worker::COMMAND => worker::main(rest),
        "version" | "--version" | "-V" => {
            println!("nerite {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        unknown => {
            eprintln!("nerite: {}\n`nerite help` lists the commands", not_a_command(unknown));
            ExitCode::from(2)
        }
    }
}

/// What is wrong with the first word of a command line. It names the command or the flag that was probably meant.
fn not_a_command(word: &str) -> String {
    let Some(flag) = word.strip_prefix("--") else {
        let meant = nearest(word, completions::commands().iter().map(|command| command.name));
        return format!("there is no command '{word}'{}", did_you_mean(meant));
    };
    let name = flag.split_once('=').map_or(flag, |(name, _)| name);
    let meant = nearest(name, flags::FLAGS.iter().map(|flag| flag.name));
    let hint = did_you_mean(meant.map(|name| format!("nerite serve --{name}")));
    format!("a command comes before the flag '--{name}'{hint}")
}

#[cfg(test)]
mod tests {
    use super::not_a_command;

    #[test]
    fn a_slip_in_the_first_word_is_told_what_was_meant() {
        for (word, expect) in [
            ("srve", "there is no command 'srve'; did you mean 'serve'?"),
            ("xyz", "there is no command 'xyz'"),
            ("--htp-port=1", "a command comes before the flag '--htp-port'; did you mean 'nerite serve --http-port'?"),
            ("--http-port", "a command comes before the flag '--http-port'; did you mean 'nerite serve --http-port'?"),
            ("--xyzzy", "a command comes before the flag '--xyzzy'"),
        ] {
            assert_eq!(not_a_command(word), expect);
        }
    }
}
