//! Is a running server ready?
//!
//! For health checks of containers: the image needs no other client for them.

use std::process::ExitCode;
use std::time::Duration;

use crate::certificates::Certificates;
use crate::config::is_address_of_service;
use crate::plain::plain;

/// What `nerite ready --help` prints.
pub const USAGE: &str = "\
Usage: nerite ready [URL] [options]

Asks a server over HTTP whether it takes requests. Ends with 0 if it does, else with 1.

  URL                       http://host:port, https://host:port or unix:/path; otherwise this host's, at the port of
                            NERITE_HTTP_PORT or 8000
      --cacert FILE         the certificates to believe at https://, in PEM, in place of the system's
      --cert FILE           the certificate to show there, with --key FILE
  -h, --help                print this
";

/// A server that does not answer within this is not ready.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// `nerite ready`; `words` are those after the word `ready`.
pub fn main(words: &[String]) -> ExitCode {
    let (url, certificates) = match read(words) {
        Ok(Some((url, certificates))) => {
            (url.unwrap_or_else(|| usual_url(std::env::var("NERITE_HTTP_PORT").ok())), certificates)
        }
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(reason) => {
            eprint!("nerite ready: {}\n\n{USAGE}", plain(&reason));
            return ExitCode::from(2);
        }
    };
    match fetch_readiness(&url, &certificates) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("nerite ready: the server at {url} is not ready");
            ExitCode::FAILURE
        }
        Err(reason) => {
            eprintln!("nerite ready: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// The URL, if one is given; `None` if the words ask for help.
fn read(words: &[String]) -> Result<Option<(Option<String>, Certificates)>, String> {
    let (mut url, mut certificates, mut words) = (None, Certificates::default(), words.iter().map(String::as_str));
    while let Some(word) = words.next() {
        let (name, joined) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let value = || joined.or_else(|| words.next()).ok_or_else(|| format!("{name} wants a value"));
        match word {
            "-h" | "--help" => return Ok(None),
            _ if certificates.take(name, value)? => {}
            _ if !word.starts_with('-') && url.is_none() => url = Some(word.to_owned()),
            _ => return Err(format!("'{word}' is no option, or one URL too many")),
        }
    }
    Ok(Some((url, certificates)))
}

fn usual_url(port: Option<String>) -> String {
    format!(
        "http://127.0.0.1:{}",
        port.filter(|port| !port.is_empty() && !is_address_of_service(port)).as_deref().unwrap_or("8000")
    )
}

fn fetch_readiness(url: &str, certificates: &Certificates) -> Result<bool, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start a runtime: {error}"))?;
    runtime.block_on(async {
        let client = certificates.client(url)?;
        let answer = tokio::time::timeout(ANSWER_WITHIN, client.is_ready()).await;
        answer
            .map_err(|_| format!("{url} does not answer within {ANSWER_WITHIN:?}"))?
            .map_err(|error| error.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_names_one_server() {
        let read = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            super::read(&words).map(|read| read.map(|(url, certificates)| (url, certificates.is_none())))
        };
        assert_eq!(read(""), Ok(Some((None, true))));
        assert_eq!(read("unix:/a=b"), Ok(Some((Some("unix:/a=b".to_owned()), true))));
        assert_eq!(read("--cacert=/ca https://h:1"), Ok(Some((Some("https://h:1".to_owned()), false))));
        assert_eq!(read("a:1 -h"), Ok(None));
        assert!(read("a:1 b:1").is_err() && read("--verbose").is_err() && read("--key").is_err());
    }

    #[test]
    fn the_port_is_that_of_the_server_beside_it() {
        assert_eq!(usual_url(None), "http://127.0.0.1:8000");
        assert_eq!(usual_url(Some(String::new())), "http://127.0.0.1:8000");
        assert_eq!(usual_url(Some("tcp://10.0.0.1:8000".into())), "http://127.0.0.1:8000");
        assert_eq!(usual_url(Some("9000".into())), "http://127.0.0.1:9000");
    }
}
