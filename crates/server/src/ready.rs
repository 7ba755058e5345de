//! Is a running server ready?
//!
//! For health checks of containers, whose images need no other client for it.

use std::process::ExitCode;
use std::time::Duration;

use nerite_client::http;

use crate::config::is_address_of_service;

/// What `nerite ready --help` prints.
pub const USAGE: &str = "\
Usage: nerite ready [URL]

Asks a server over HTTP whether it takes requests. Ends with 0 if it does, else with 1.

  URL                       http://host:port or unix:/path; otherwise this host's, at the port of NERITE_HTTP_PORT or 8000
  -h, --help                print this
";

/// A server that does not answer within this is not ready.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// `nerite ready`; `words` are those after the word `ready`.
pub fn main(words: &[String]) -> ExitCode {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let url = match words[..] {
        ["-h" | "--help"] => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        [] => usual_url(std::env::var("NERITE_HTTP_PORT").ok()),
        [url] if !url.starts_with('-') => url.to_owned(),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match ask(&url) {
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

fn usual_url(port: Option<String>) -> String {
    format!(
        "http://127.0.0.1:{}",
        port.filter(|port| !port.is_empty() && !is_address_of_service(port)).as_deref().unwrap_or("8000")
    )
}

fn ask(url: &str) -> Result<bool, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start a runtime: {error}"))?;
    runtime.block_on(async {
        let client = http::Client::new(url).map_err(|error| error.to_string())?;
        let told = tokio::time::timeout(ANSWER_WITHIN, client.is_ready()).await;
        told.map_err(|_| format!("{url} does not answer within {ANSWER_WITHIN:?}"))?.map_err(|error| error.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_that_of_the_server_beside_it() {
        assert_eq!(usual_url(None), "http://127.0.0.1:8000");
        assert_eq!(usual_url(Some(String::new())), "http://127.0.0.1:8000");
        assert_eq!(usual_url(Some("tcp://10.0.0.1:8000".into())), "http://127.0.0.1:8000");
        assert_eq!(usual_url(Some("9000".into())), "http://127.0.0.1:9000");
    }
}
