//! How is a running server doing, on a terminal?
//!
//! ```text
//!   metrics port ─ gather ─► Sample ─┐
//!                    metrics         ├─ frame ─► lines ─ terminal
//!                       Sample before┘
//! ```

mod frame;
mod gather;
mod metrics;
mod terminal;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use nerite_client::http;
use tokio::runtime::Runtime;

use crate::certificates::Certificates;
use crate::config::is_address_of_service;
use crate::misused::{no_option, refuse};
use crate::plain::plain;
use frame::{Size, frame};
use gather::{Sample, gather};
use terminal::Terminal;

/// What `nerite top --help` prints.
pub const USAGE: &str = "\
Usage: nerite top [options]

Shows the models, queues, batches, copies, regions and sessions of a running server, and shows them anew every second. `q` quits.

      --url URL             the server's metrics port, or that of its page; otherwise this host's, at the port of
                            NERITE_METRICS_PORT or 8002
      --cacert FILE         the certificates to believe at https://, in PEM, in place of the system's
      --cert FILE           the certificate to show there, with --key FILE
      --interval SECONDS    time between two looks; 1 if it is not given
      --once                print one look, taken over one interval, and end
  -h, --help                print this

Regions, sessions and the states of models come from the server's page (--ui), which shows each user what that user may see.
The token in NERITE_TOKEN is sent to the URL; it needs the scope 'read'.
";

/// Shorter intervals would mostly measure this program.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
const INTERVAL_MAX: Duration = Duration::from_hours(1);
/// A server that takes longer to answer is shown as one that does not answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The size of a look that is printed.
const PRINTED: Size = Size { columns: 120, rows: usize::MAX };

/// The command line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CommandLine {
    url: String,
    interval: Duration,
    once: bool,
    certificates: Certificates,
}

/// `nerite top`; `words` are those after the word `top`.
pub fn main(words: &[String]) -> ExitCode {
    let command_line = match read(words, std::env::var("NERITE_METRICS_PORT").ok()) {
        Ok(Some(command_line)) => command_line,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(reason) => {
            return refuse("top", &reason);
        }
    };
    match run(&command_line) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("nerite top: {}", plain(&reason));
            ExitCode::FAILURE
        }
    }
}

fn read(words: &[String], port: Option<String>) -> Result<Option<CommandLine>, String> {
    let port = port.filter(|port| !port.is_empty() && !is_address_of_service(port));
    let url = format!("http://127.0.0.1:{}", port.as_deref().unwrap_or("8002"));
    let certificates = Certificates::default();
    let mut command_line = CommandLine { url, interval: Duration::from_secs(1), once: false, certificates };
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let (name, joined) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let mut value = || joined.or_else(|| words.next()).ok_or_else(|| format!("{name} wants a value"));
        match name {
            "-h" | "--help" => return Ok(None),
            "--once" => command_line.once = true,
            "--url" => value()?.clone_into(&mut command_line.url),
            "--interval" => command_line.interval = interval(value()?)?,
            url if !url.starts_with('-') && joined.is_none() => url.clone_into(&mut command_line.url),
            option if command_line.certificates.take(option, &mut value)? => {}
            _ => return Err(no_option(word, USAGE)),
        }
    }
    Ok(Some(command_line))
}

fn interval(text: &str) -> Result<Duration, String> {
    let given = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    given.filter(|given| (INTERVAL_MIN..=INTERVAL_MAX).contains(given)).ok_or_else(|| {
        let (min, max) = (INTERVAL_MIN.as_secs_f64(), INTERVAL_MAX.as_secs());
        format!("--interval is {min} to {max} seconds, and is '{text}'")
    })
}

fn run(command_line: &CommandLine) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start a runtime: {error}"))?;
    let client = command_line.certificates.client(&command_line.url)?;
    if command_line.once {
        let before = sample(&runtime, &client, &command_line.certificates)?;
        // In the runtime, whose clock it needs.
        runtime.block_on(async { tokio::time::sleep(command_line.interval).await });
        let now = sample(&runtime, &client, &command_line.certificates)?;
        print!("{}", frame(&command_line.url, Some(&before), &now, PRINTED).join("\n") + "\n");
        return Ok(());
    }
    watch(command_line, &runtime, &client)
}

fn sample(runtime: &Runtime, client: &http::Client, certificates: &Certificates) -> Result<Sample, String> {
    let gathered = runtime.block_on(async { tokio::time::timeout(ANSWER_WITHIN, gather(client, certificates)).await });
    gathered.map_err(|_| format!("the server does not answer within {ANSWER_WITHIN:?}"))?
}

/// Draws until somebody presses `q`. If the server ends, this waits until it is back.
fn watch(command_line: &CommandLine, runtime: &Runtime, client: &http::Client) -> Result<(), String> {
    // Whoever mistook the address learns it before the screen changes.
    let look = || sample(runtime, client, &command_line.certificates);
    let mut before = look()?;
    let mut terminal = Terminal::enter()?;
    let mut now: Option<Result<Sample, String>> = None;
    loop {
        let lines = match &now {
            None => frame(&command_line.url, None, &before, Terminal::size()),
            Some(Ok(sample)) => frame(&command_line.url, Some(&before), sample, Terminal::size()),
            Some(Err(reason)) => {
                vec![format!("nerite top  {}", plain(&command_line.url)), String::new(), plain(reason)]
            }
        };
        Terminal::draw(&lines)?;
        let next_look = Instant::now() + command_line.interval;
        if terminal.wait_for_quit(next_look) {
            return Ok(());
        }
        if let Some(Ok(sample)) = now.replace(look()) {
            before = sample;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expect: Result<Option<(&str, u64, bool)>, &str>) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let found = read(&words, None).map(|command_line| {
            command_line
                .map(|command_line| (command_line.url, command_line.interval.as_millis() as u64, command_line.once))
        });
        let expect = expect.map(|command_line| command_line.map(|(url, ms, once)| (url.to_owned(), ms, once)));
        assert_eq!(found.as_ref().map_err(String::as_str), expect.as_ref().map_err(|text| *text), "{line}");
    }

    #[test]
    fn words_say_which_server_and_how_often() {
        check("", Ok(Some(("http://127.0.0.1:8002", 1000, false))));
        check("--url http://h:1 --once", Ok(Some(("http://h:1", 1000, true))));
        check("h:1 --interval=0.5", Ok(Some(("h:1", 500, false))));
        check("--once --help", Ok(None));
        check("--url", Err("--url wants a value"));
        check("--interval 0", Err("--interval is 0.1 to 3600 seconds, and is '0'"));
        check("--interval soon", Err("--interval is 0.1 to 3600 seconds, and is 'soon'"));
        check("--twice", Err("there is no option '--twice'"));
        check("https://h:1 --cacert /ca.pem --cert=/c --key /k", Ok(Some(("https://h:1", 1000, false))));
        check("--cacert", Err("--cacert wants a value"));
        assert_eq!(
            read(&[], Some("9".into())).map(|command_line| command_line.map(|command_line| command_line.url)),
            Ok(Some("http://127.0.0.1:9".into()))
        );
    }
}
