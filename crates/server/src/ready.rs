//! Is a running server ready?
//!
//! For health checks of containers: the image needs no other client for them. The server is that of a URL, or the one beside it whose settings are in
//! the environment or in a file.

mod place;

use std::process::ExitCode;
use std::time::Duration;

use nerite_api::Protocol;
use nerite_client::{ClientOptions, Error, HandshakeFault, grpc, http};

use self::place::Place;
use crate::certificates::Certificates;
use crate::config::{complete, locate};
use crate::flags::parse;
use crate::misused::{no_option, refuse};
use crate::plain::plain;
use crate::settings::Fronts;

/// What `nerite ready --help` prints.
pub const USAGE: &str = "\
Usage: nerite ready [URL] [options]

Asks a server whether it takes requests. Ends with 0 if it does, else with 1.

  URL                       http://host:port, https://host:port or unix:/path; otherwise this host's server, at the
                            address of NERITE_* variables and of the file of settings, with TLS if they say so
      --config FILE         the file of settings of this host's server (also: NERITE_CONFIG)
      --cacert FILE         the certificates to believe at https://, in PEM, in place of the system's
      --cert FILE           the certificate to show there, with --key FILE
  -h, --help                print this
";

/// A server that does not answer within this is not ready.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What the words of the command line say.
#[derive(Debug, Default, PartialEq, Eq)]
struct CommandLine {
    url: Option<String>,
    config: Option<String>,
    certificates: Certificates,
}

/// `nerite ready`; `words` are those after the word `ready`.
pub fn main(words: &[String]) -> ExitCode {
    let command_line = match read(words) {
        Ok(Some(command_line)) => command_line,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(reason) => {
            return refuse("ready", &reason);
        }
    };
    match check(command_line) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            // A file of settings may have several faults, one a line.
            let lines: Vec<String> = reason.trim_end().lines().map(plain).collect();
            eprintln!("nerite ready: {}", lines.join("\n"));
            ExitCode::FAILURE
        }
    }
}

/// `None` if the words ask for help.
fn read(words: &[String]) -> Result<Option<CommandLine>, String> {
    let (mut found, mut words) = (CommandLine::default(), words.iter().map(String::as_str));
    while let Some(word) = words.next() {
        let (name, joined) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let mut value = || joined.or_else(|| words.next()).ok_or_else(|| format!("{name} wants a value"));
        match name {
            "-h" | "--help" if joined.is_none() => return Ok(None),
            "--config" => found.config = Some(value()?.to_owned()),
            _ if found.certificates.take(name, &mut value)? => {}
            _ if !word.starts_with('-') && found.url.is_none() => found.url = Some(word.to_owned()),
            _ if word.starts_with('-') => return Err(no_option(word, USAGE)),
            _ => return Err(format!("'{word}' is one URL too many")),
        }
    }
    if found.url.is_some() && found.config.is_some() {
        return Err("give a URL or --config, and not both: each says where the server is".to_owned());
    }
    Ok(Some(found))
}

/// Asks the server. An error says why it is not ready, or why that is unknown.
fn check(command_line: CommandLine) -> Result<(), String> {
    let CommandLine { url, config, certificates } = command_line;
    let place = match url {
        Some(url) => Place::named(url),
        None => place_beside(config.as_deref(), certificates.has_own())?,
    };
    let certificates = if place.needs_none { Certificates::default() } else { certificates };
    let certificates = certificates.trust_shown(place.shown.clone());
    fetch_readiness(&place, &certificates)?.map_err(|why| {
        let why = if why.is_empty() { why } else { format!(": {why}") };
        format!("the server at {} is not ready{why}", place.url)
    })
}

/// Where the server is that was started with the same variables, and with this file if one is named.
fn place_beside(config: Option<&str>, has_certificate: bool) -> Result<Place, String> {
    let words: Vec<String> = config.map(|path| format!("--config={path}")).into_iter().collect();
    let given = parse(&words).map_err(|error| error.to_string())?;
    let (given, _) = complete(given)?;
    let fronts = Fronts::read(&given).map_err(|error| locate(&error, &given))?;
    Place::of(fronts, has_certificate)
}

/// The inner error: the server is not ready, for the reason in the text if it tells one.
fn fetch_readiness(place: &Place, certificates: &Certificates) -> Result<Result<(), String>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start a runtime: {error}"))?;
    let (url, options) = (&place.url, certificates.options(&place.url)?);
    runtime.block_on(async {
        let answer = tokio::time::timeout(ANSWER_WITHIN, readiness(place, &options)).await;
        answer
            .map_err(|_| format!("{url} does not answer within {ANSWER_WITHIN:?}"))?
            .map_err(|error| explain(place, certificates, &error))
    })
}

/// The text of an error, with the cure.
fn explain(place: &Place, certificates: &Certificates, error: &Error) -> String {
    use HandshakeFault::{Closed, PortHasNoTls, PortHasTls};
    match error {
        Error::Handshake { fault: PortHasTls | PortHasNoTls | Closed, .. } if place.is_of_settings => format!(
            "{error}; the address is that of the settings, and the server has others: give its own by NERITE_* variables or \
             --config FILE, or its URL"
        ),
        error => certificates.explain(error),
    }
}

async fn readiness(place: &Place, options: &ClientOptions) -> Result<Result<(), String>, Error> {
    let url = &place.url;
    let is_ready = match (place.protocol, &place.header) {
        (Protocol::Http, header) => {
            let client = http::Client::with_options(url, options)?;
            let client = match header {
                Some((name, value)) => client.with_header(name, value)?,
                None => client,
            };
            return Ok(client.readiness().await?.map_err(|status| status.message));
        }
        (Protocol::Grpc, None) => grpc::Client::with_options(url, options)?.is_ready().await?,
        (Protocol::Grpc, Some((name, value))) => {
            grpc::Client::with_options(url, options)?.with_header(name, value)?.is_ready().await?
        }
    };
    // The message of gRPC has no place for a reason.
    Ok(if is_ready { Ok(()) } else { Err(String::new()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Read = Result<Option<(Option<String>, Option<String>, bool)>, String>;

    fn read(line: &str) -> Read {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        super::read(&words).map(|read| read.map(|found| (found.url, found.config, found.certificates.is_none())))
    }

    #[test]
    fn the_command_line_names_one_server() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(read(""), Ok(Some((None, None, true))));
        assert_eq!(read("unix:/a=b"), Ok(Some((text("unix:/a=b"), None, true))));
        assert_eq!(read("--cacert=/ca https://h:1"), Ok(Some((text("https://h:1"), None, false))));
        assert_eq!(read("--config a.toml"), Ok(Some((None, text("a.toml"), true))));
        assert_eq!(read("--config=a=b.toml --cacert=/ca"), Ok(Some((None, text("a=b.toml"), false))));
        assert_eq!(read("a:1 -h"), Ok(None));
        assert!(read("a:1 b:1").is_err() && read("--verbose").is_err() && read("--key").is_err());
        assert!(read("--config").is_err() && read("--config=f a:1").is_err());
    }

    #[test]
    fn a_file_of_settings_says_where_the_server_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("nerite.toml");
        let place = |text: &str| {
            std::fs::write(&path, text).expect("a file");
            place_beside(path.to_str(), false).map(|place| place.url)
        };
        assert_eq!(place("http-port = 9000\nhttp-address = 'localhost'"), Ok("http://localhost:9000".to_owned()));
        let refused = place("http-prot = 9000").expect_err("no setting");
        assert!(refused.contains("did you mean 'http-port'?"), "{refused}");
        let refused = place("http-port = 'many'").expect_err("no port");
        assert!(refused.contains("nerite.toml:1: http-port"), "{refused}");
        assert!(place_beside(Some("/nowhere/nerite.toml"), false).is_err_and(|text| text.contains("/nowhere")));
    }
}
