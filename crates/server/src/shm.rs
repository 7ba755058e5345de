//! What can an operator see of shared memory, and end?
//!
//! ```text
//!   words ─ asked ─► CommandLine ─ reach ─► Session ─► Found ─ show ─► text | JSON
//!                        └── over_http ──────────────┘
//! ```

mod command;
mod connect;
mod json;
mod over_http;
mod show;
mod told;

use std::process::ExitCode;
use std::time::Duration;

use nerite_client::{Error, Session};

use crate::plain::plain;
use command::{Command, CommandLine, Way};
use told::{Server, Told};

/// What `nerite shm --help` prints.
pub const USAGE: &str = "\
Usage: nerite shm <command> [options]

  list                      all regions: the common ones and those of sessions
  show NAME                 everything about the regions of that name
  show --session N          everything about one session: its regions and its leases
  drop NAME                 unregister a common region; requests that use it go on
  drop NAME --session N     unregister a session's own region
  drop --all                unregister all common regions
  drop --session N          end a session, as if its client had gone
  pools                     what is lent, by size
  sessions                  who has a session

      --session-socket P    the server's session socket, if it is not at the default place
      --server-uid N        the server may be that user's, besides this one's and root's
      --http URL            ask over HTTP instead: list, show and drop of common regions, also against a Triton
      --cacert FILE         the certificates to believe at https://, in PEM, in place of the system's
      --cert FILE           the certificate to show there, with --key FILE
      --json                for programs
  -h, --help                print this

The server answers its own user and root. Over HTTP the token in NERITE_TOKEN is sent; it needs the scope 'regions'.
";

/// A server that does not answer within this is not waited for.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// `nerite shm`; `words` are those after the word `shm`.
pub fn main(words: &[String]) -> ExitCode {
    let asked = match CommandLine::read(words) {
        Ok(Some(asked)) => asked,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(reason) => {
            eprintln!("nerite shm: {}\n`nerite shm --help` lists the commands", plain(&reason));
            return ExitCode::from(2);
        }
    };
    match answer(&asked) {
        Ok((server, told)) => {
            print!("{}", if asked.json { json::line(&server, &told) } else { show::text(&told) });
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("nerite shm: {}", plain(&reason));
            ExitCode::FAILURE
        }
    }
}

fn answer(asked: &CommandLine) -> Result<(Server, Told), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start a runtime: {error}"))?;
    runtime.block_on(async {
        let told = tokio::time::timeout(ANSWER_WITHIN, ask(asked)).await;
        told.unwrap_or_else(|_| Err(format!("the server does not answer within {ANSWER_WITHIN:?}")))
    })
}

async fn ask(asked: &CommandLine) -> Result<(Server, Told), String> {
    match &asked.way {
        Way::Http(url, certificates) => {
            let server = Server::Http { url: url.clone() };
            name(asked, &server);
            over_http::ask(certificates.client(url)?, &asked.what).await.map(|told| (server, told))
        }
        Way::Socket { path, server_uid } => {
            let session = connect::connect(path, *server_uid).await?;
            let server = Server::Socket { path: path.clone(), pid: session.server_pid() };
            name(asked, &server);
            let told = ask_session(&session, &asked.what).await;
            told.map(|told| (server, told)).map_err(|failed| match failed {
                // The kind of error is of no use to an operator.
                Error::Session(reason) => reason,
                error => error.to_string(),
            })
        }
    }
}

/// Prints which server is asked before the call is made, because a host may have several servers.
fn name(asked: &CommandLine, server: &Server) {
    if !asked.json {
        eprintln!("nerite shm: {}", plain(&show::server(server)));
    }
}

async fn ask_session(session: &Session, what: &Command) -> Result<Told, Error> {
    Ok(match what {
        Command::List => {
            Told::Regions { regions: session.inspect_regions(None).await?, sessions: session.inspect_sessions().await? }
        }
        Command::Show { name } => {
            let regions = session.inspect_regions(Some(name)).await?;
            if regions.is_empty() {
                return Err(no_region(name));
            }
            Told::Region { regions, sessions: session.inspect_sessions().await? }
        }
        Command::ShowSession { number } => {
            let leases = session.inspect_leases(*number).await?;
            let mut regions = session.inspect_regions(None).await?;
            regions.retain(|region| region.session == *number);
            let sessions = session.inspect_sessions().await?;
            let found = sessions.into_iter().find(|session| session.number == *number);
            let ended = || Error::Session(format!("session {number} has just ended"));
            Told::Session { session: found.ok_or_else(ended)?, regions, leases }
        }
        Command::Drop { name, session: of } => {
            let dropped = session.drop_region(*of, name).await?;
            Told::Dropped { what: format!("region '{name}'"), dropped }
        }
        Command::DropAll => {
            let dropped = session.drop_all_regions().await?;
            Told::Dropped { what: format!("{} common regions", dropped.count), dropped }
        }
        Command::EndSession { number } => {
            Told::Dropped { what: format!("session {number}"), dropped: session.end_session(*number).await? }
        }
        Command::Pools => Told::Pools(session.inspect_pools().await?),
        Command::Sessions => Told::Sessions(session.inspect_sessions().await?),
    })
}

fn no_region(name: &str) -> Error {
    Error::Session(format!("no region is called '{name}'; `nerite shm list` shows all"))
}
