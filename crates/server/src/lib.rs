//! What does an operator type?
//!
//! The program `nerite`, and the same server inside another program ([`InProcess`]), which speaks no protocol:
//!
//! ```
//! use nerite_cabi::{ServerCalls, ServerReports};
//! use nerite_server::InProcess;
//!
//! let models = tempfile::tempdir()?; // a model repository without models
//! let server = InProcess::start(&[format!("--model-repository={}", models.path().display())])?;
//! assert!(server.is_ready()?);
//! server.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![expect(clippy::print_stderr, reason = "a program prints")]
#![forbid(unsafe_code)]

/// As that of the standard library, but a command whose output cannot be written ends with the reason, and not with a panic.
macro_rules! print {
    ($($text:tt)*) => { $crate::output::write(format_args!($($text)*)) };
}

/// The same with a line's end.
macro_rules! println {
    ($($text:tt)*) => { $crate::output::write(format_args!("{}\n", format_args!($($text)*))) };
}

mod certificates;
mod completions;
mod config;
mod demo;
mod descriptors;
mod doctor;
mod drain;
mod file_limit;
mod flags;
mod fleet;
mod in_process;
mod logger;
mod manual;
mod misused;
mod model;
mod output;
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

use std::ffi::{OsStr, OsString};
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
  nerite doctor [shm|python|onnx] [options]     say what stands in the way, and how to fix it
  nerite demo [--exit]                          see a model answer through shared memory, with latencies and copies
  nerite config check|show                      check a file of settings, or print those in effect; `nerite config --help`
  nerite drain [--pid N]                        make a running server drain before it is stopped; `nerite drain --help`
  nerite ready [URL]                            ask a running server whether it is ready; ends with 0 or 1
  nerite top [--url URL] [--once]               watch a running server's models, queues, copies and shared memory
  nerite bench -m MODEL [options]               measure a model of a running server; `nerite bench --help`
  nerite model run DIR [options]                run a Python model in the terminal; `nerite model --help`
  nerite fleet up|roll|status|down              run replicas on several machines, with Ray and Envoy; `nerite fleet --help`
  nerite completions bash|zsh|fish              print what a shell completes commands and flags by
  nerite man                                    print the manual page
  nerite version                                print the version

Started under the name `tritonserver`, the binary takes the flags of `nerite serve` directly.
";

/// The program `nerite`.
pub fn main() -> ExitCode {
    nerite_ort::disable_telemetry();
    nerite_memory::fit_heap();
    let mut words = std::env::args_os();
    let program = words.next();
    let program = program.as_deref().and_then(|word| Path::new(word).file_name());
    match words.map(OsString::into_string).collect::<Result<Vec<String>, OsString>>() {
        Ok(words) => output::run(|| run_as(program, &words)),
        Err(word) => {
            eprintln!(
                "nerite: '{}' of the command line is not UTF-8; a file of another name can be reached by a link to it",
                plain::plain(&word.to_string_lossy())
            );
            ExitCode::from(2)
        }
    }
}

/// Runs the command of these words; `program` is the name under which it was started.
fn run_as(program: Option<&OsStr>, words: &[String]) -> ExitCode {
    if program.is_some_and(|name| name == "tritonserver") {
        return serve::main(Command::Tritonserver, words);
    }
    let Some((command, rest)) = words.split_first() else {
        print!("{HELP}");
        return ExitCode::from(2);
    };
    match (command.as_str(), rest) {
        // `nerite help serve` is `nerite serve --help`.
        ("help", [about]) => run(about, &["--help".to_owned()]),
        (command, rest) => run(command, rest),
    }
}

/// Runs a command, with the words that follow it.
pub fn run(command: &str, rest: &[String]) -> ExitCode {
    match command {
        "serve" => serve::main(Command::Serve, rest),
        "shm" => shm::main(rest),
        "doctor" => doctor::main(rest),
        "demo" => demo::main(rest),
        "config" => config::main(rest, serve::load_models),
        "drain" => drain::main(rest),
        "ready" => ready::main(rest),
        "top" => top::main(rest),
        "bench" => nerite_bench::main(rest),
        "model" => model::main(rest),
        "fleet" => fleet::main(rest),
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
