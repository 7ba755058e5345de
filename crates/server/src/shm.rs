//! What can an operator see of shared memory, and end?
//!
//! ```text
//!   words ─ asked ─► CommandLine ─ reach ─► Session ─► Found ─ show ─► text | JSON
//!                        └── over_http ──────────────┘
//! ```

mod answer;
mod command;
mod connect;
mod json;
mod over_http;
mod show;

use std::process::ExitCode;
use std::time::Duration;

use nerite_client::{Error, Session};

use crate::misused::refuse;
use crate::plain::plain;
use answer::{Answer, Server};
use command::{Command, CommandLine, Way};
pub(crate) use connect::connect;

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

/// How long the command waits for the server's answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// `nerite shm`; `words` are those after the word `shm`.
pub fn main(words: &[String]) -> ExitCode {
    let command_line = match CommandLine::read(words) {
        Ok(Some(command_line)) => command_line,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(reason) => {
            return refuse("shm", &reason);
        }
    };
    match run(&command_line) {
        Ok((server, answer)) => {
            print!("{}", if command_line.json { json::line(&server, &answer) } else { show::text(&answer) });
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("nerite shm: {}", plain(&reason));
            ExitCode::FAILURE
        }
    }
}

fn run(command_line: &CommandLine) -> Result<(Server, Answer), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start a runtime: {error}"))?;
    runtime.block_on(async {
        let reply = tokio::time::timeout(ANSWER_WITHIN, query(command_line)).await;
        reply.unwrap_or_else(|_| Err(format!("the server does not answer within {ANSWER_WITHIN:?}")))
    })
}

async fn query(command_line: &CommandLine) -> Result<(Server, Answer), String> {
    match &command_line.way {
        Way::Http(url, certificates) => {
            let server = Server::Http { url: url.clone() };
            name(command_line, &server);
            let answer = over_http::query(certificates.client(url)?, certificates, &command_line.what).await;
            answer.map(|answer| (server, answer))
        }
        Way::Socket { path, server_uid } => {
            let session = connect(path, *server_uid).await?;
            let server = Server::Socket { path: path.clone(), pid: session.server_pid() };
            name(command_line, &server);
            let answer = query_session(&session, &command_line.what).await;
            answer.map(|answer| (server, answer)).map_err(|failed| match failed {
                // The kind of error is of no use to an operator.
                Error::Session(reason) => reason,
                error => error.to_string(),
            })
        }
    }
}

/// Prints which server is asked before the call is made, because a host may have several servers.
fn name(command_line: &CommandLine, server: &Server) {
    if !command_line.json {
        eprintln!("nerite shm: {}", plain(&show::server(server)));
    }
}

async fn query_session(session: &Session, what: &Command) -> Result<Answer, Error> {
    Ok(match what {
        Command::List => Answer::Regions {
            regions: session.inspect_regions(None).await?,
            sessions: session.inspect_sessions().await?,
        },
        Command::Show { name } => {
            let regions = session.inspect_regions(Some(name)).await?;
            if regions.is_empty() {
                return Err(no_region(name));
            }
            Answer::Region { regions, sessions: session.inspect_sessions().await? }
        }
        Command::ShowSession { number } => {
            let leases = session.inspect_leases(*number).await?;
            let mut regions = session.inspect_regions(None).await?;
            regions.retain(|region| region.session == *number);
            let sessions = session.inspect_sessions().await?;
            let found = sessions.into_iter().find(|session| session.number == *number);
            let ended = || Error::Session(format!("session {number} has just ended"));
            Answer::Session { session: found.ok_or_else(ended)?, regions, leases }
        }
        Command::Drop { name, session: of } => {
            let dropped = session.drop_region(*of, name).await?;
            Answer::Dropped { what: format!("region '{name}'"), dropped }
        }
        Command::DropAll => {
            let dropped = session.drop_all_regions().await?;
            Answer::Dropped { what: format!("{} common regions", dropped.count), dropped }
        }
        Command::EndSession { number } => {
            Answer::Dropped { what: format!("session {number}"), dropped: session.end_session(*number).await? }
        }
        Command::Pools => Answer::Pools(session.inspect_pools().await?),
        Command::Sessions => Answer::Sessions(session.inspect_sessions().await?),
    })
}

fn no_region(name: &str) -> Error {
    Error::Session(format!("no region is called '{name}'; `nerite shm list` shows all"))
}
