//! What does the demo show a new user in half a minute?
//!
//! ```text
//!   nerite demo ──spawns──► nerite serve examples/models      two processes, as in real use
//!        │                          ▲
//!        └── classify, measure ─────┘  through shared memory and inline, over HTTP and gRPC
//! ```
//!
//! The demo itself is a client like any other: it shares only the regions that it registers with the server that it starts.

mod batches;
mod beside;
mod child;
mod digits;
mod examples;
mod latency;
mod pipeline;
mod show;
mod tries;
mod wide_layer;

use std::path::PathBuf;
use std::process::ExitCode;

use nerite_bench::{Measured, stop_signal};
use nerite_client::http;

use self::digits::Accuracy;
use self::latency::Row;

use crate::misused::no_option;

/// What `nerite demo --help` prints.
pub const USAGE: &str = "\
Usage: nerite demo [--exit] [--examples DIR]

Starts a server on free ports, classifies handwritten digits through shared memory,
and measures what shared memory saves.

      --exit           End when done; otherwise the server stays until Ctrl-C
      --examples DIR   The folder with models/ and digits/ (also: NERITE_EXAMPLES)
  -h, --help           Print this
";

/// The addresses and files that the client part of the demo needs.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// The server over HTTP, `http://host:port`.
    pub http_url: String,
    /// The server over gRPC, `http://host:port`.
    pub grpc_url: String,
    /// The server's metrics, `http://host:port`.
    pub metrics_url: String,
    /// The server's session socket.
    pub session_socket: PathBuf,
    /// The folder with `models/` and `digits/`.
    pub examples_dir: PathBuf,
    /// The server has the pipeline of `examples/pipeline`.
    pub has_pipeline: bool,
}

/// The results of the demo.
#[derive(Clone, Debug)]
pub struct Report {
    /// How well the digits were read.
    pub accuracy: Accuracy,
    /// The table of latencies.
    pub rows: Vec<Row>,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Accuracy { right, of } = self.accuracy;
        write!(f, "In short: {right} of {of} digits")?;
        let gain = |row: &Row| Some((row.bytes, row.cells[0]?.p50_us / row.cells[1]?.p50_us));
        if let Some((bytes, gain)) = self.rows.iter().rev().find_map(gain) {
            write!(f, "; for {} shared memory is {gain:.0} times as fast as HTTP inline", show::size(bytes))?;
        }
        f.write_str(".")
    }
}

/// Why the demo could not go on.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The command line is not understood.
    #[error("{0}\n`nerite demo --help` lists the options")]
    Usage(String),
    /// There are no examples.
    #[error("no examples found in {0}; say where they are with --examples DIR or NERITE_EXAMPLES")]
    NoExamples(String),
    /// The held-out digits cannot be read.
    #[error("{path}: {reason}")]
    Samples {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The server did not come up.
    #[error("the server did not become ready: {reason}\n{log}")]
    Server {
        /// What happened.
        reason: String,
        /// The last lines it logged.
        log: String,
    },
    /// A call failed.
    #[error("{0}")]
    Client(#[from] nerite_client::Error),
    /// A measurement failed.
    #[error("cannot measure: {0}")]
    Bench(String),
    /// The system refused something.
    #[error("{what}: {reason}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        reason: std::io::Error,
    },
}

/// The command `nerite demo`; `args` are those after the word `demo`.
pub fn main(args: &[String]) -> ExitCode {
    let done = Command::read(args).and_then(|command| match command {
        Command::Help => {
            print!("{USAGE}");
            Ok(())
        }
        Command::Run { exit, examples } => runtime()?.block_on(demonstrate(exit, examples)),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("nerite demo: {fault}");
            ExitCode::FAILURE
        }
    }
}

/// The client half alone, against a server that runs already.
pub async fn run(options: &DemoOptions) -> Result<Report, DemoError> {
    let samples = digits::read(&options.examples_dir.join("digits").join("samples.bin"))?;
    let client = http::Client::new(&options.http_url)?;
    let accuracy = digits::classify(&client, &samples).await?;
    if options.has_pipeline {
        pipeline::classify(options, &samples).await?;
    } else {
        println!("A pipeline with a Python model is left out: no python3 with numpy is on the path.");
    }
    batches::measure(options).await?;
    let rows = latency::measure(options).await?;
    beside::measure(options).await?;
    Ok(Report { accuracy, rows })
}

enum Command {
    Help,
    Run { exit: bool, examples: Option<PathBuf> },
}

impl Command {
    fn read(args: &[String]) -> Result<Command, DemoError> {
        let (mut exit, mut examples, mut rest) = (false, None, args.iter());
        while let Some(arg) = rest.next() {
            match (arg.as_str(), arg.split_once('=')) {
                ("-h" | "--help", _) => return Ok(Command::Help),
                ("--exit", _) => exit = true,
                ("--examples", _) => {
                    let folder = rest.next().ok_or_else(|| DemoError::Usage("--examples needs a folder".to_owned()))?;
                    examples = Some(PathBuf::from(folder));
                }
                (_, Some(("--examples", folder))) => examples = Some(PathBuf::from(folder)),
                _ => return Err(DemoError::Usage(no_option(arg, USAGE))),
            }
        }
        Ok(Command::Run { exit, examples })
    }
}

/// One thread is enough for a client, and leaves the other cores to the server.
fn runtime() -> Result<tokio::runtime::Runtime, DemoError> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|reason| DemoError::System { what: "cannot start a runtime", reason })
}

async fn demonstrate(exit: bool, examples: Option<PathBuf>) -> Result<(), DemoError> {
    let examples_dir = examples::find(examples)?;
    let whole = async {
        let mut server = child::Server::start(&examples_dir).await?;
        println!("nerite serves {} to this client, another process.", examples_dir.join("models").display());
        let options = server.options(examples_dir.clone());
        println!("\n{}", run(&options).await?);
        tries::print(if exit { None } else { Some(&options) }, &examples_dir.join("models")).await;
        if !exit {
            println!("\nThe server stays until Ctrl-C.");
            server.until_gone().await?;
        }
        Ok(())
    };
    tokio::select! {
        done = whole => done,
        // A Ctrl-C at a terminal reaches the server as well. For other signals, dropping the server ends it.
        ended = stop_signal() => ended.map_err(|reason| DemoError::System { what: "cannot wait for signals", reason }),
    }
}

/// Measures what this command line of `nerite bench` says. If the demo is stopped meanwhile, the measurement fails because the server is gone. The runtime
/// waits for that, so no region stays behind.
#[expect(clippy::disallowed_methods, reason = "there is one such thread at a time, and no server in this process")]
async fn bench(line: String) -> Result<Measured, DemoError> {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    // The client refuses to block a thread of a runtime, also one that is meant for it.
    let measure = move || std::thread::scope(|scope| scope.spawn(|| nerite_bench::measure(&words)).join());
    let measured = tokio::task::spawn_blocking(measure).await.ok().and_then(Result::ok);
    measured.unwrap_or_else(|| Err("its thread panicked".to_owned())).map_err(DemoError::Bench)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(args: &[&str], outcome: Option<(bool, Option<&str>)>) {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let read = match Command::read(&args) {
            Ok(Command::Run { exit, examples }) => Some((exit, examples)),
            _ => None,
        };
        assert_eq!(read, outcome.map(|(exit, examples)| (exit, examples.map(PathBuf::from))), "{args:?}");
    }

    #[test]
    fn the_command_line_is_short() {
        check(&[], Some((false, None)));
        check(&["--exit", "--examples", "a"], Some((true, Some("a"))));
        check(&["--examples=b"], Some((false, Some("b"))));
        check(&["--examples"], None);
        check(&["--what"], None);
    }
}
