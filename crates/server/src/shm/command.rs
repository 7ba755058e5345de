//! What did the operator request, and over which protocol?

use std::path::PathBuf;

use nerite_client::default_path;

use crate::certificates::Certificates;
use crate::misused::no_option;
use crate::shm::USAGE;

/// A command line, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommandLine {
    pub(super) what: Command,
    pub(super) way: Way,
    pub(super) json: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    List,
    Show {
        name: String,
    },
    ShowSession {
        number: u64,
    },
    /// `session` is 0 for a common region.
    Drop {
        name: String,
        session: u64,
    },
    DropAll,
    EndSession {
        number: u64,
    },
    Pools,
    Sessions,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Socket {
        path: PathBuf,
        /// A user whose server is trusted, besides this user and root.
        server_uid: Option<u32>,
    },
    Http(String, Certificates),
}

#[derive(Default)]
struct Options {
    socket: Option<String>,
    server_uid: Option<u32>,
    http: Option<String>,
    certificates: Certificates,
    session: Option<u64>,
    all: bool,
    json: bool,
    words: Vec<String>,
}

impl CommandLine {
    /// Reads the words after `shm`; `None` if they ask for help.
    pub(super) fn read(words: &[String]) -> Result<Option<CommandLine>, String> {
        let Some(options) = Options::read(words)? else { return Ok(None) };
        let Options { socket, server_uid, http, certificates, session, all, json, words } = options;
        let mut words = words.into_iter();
        let command = words.next().ok_or("a command is missing")?;
        let name = words.next();
        if let Some(stray) = words.next() {
            return Err(format!("'{stray}' is one word too many"));
        }
        let what = match (command.as_str(), name, session, all) {
            ("list", None, None, false) => Command::List,
            ("pools", None, None, false) => Command::Pools,
            ("sessions", None, None, false) => Command::Sessions,
            ("show", Some(name), None, false) => Command::Show { name },
            ("show", None, Some(number), false) => Command::ShowSession { number },
            ("show", ..) => return Err("show wants a region's name, or --session and its number".to_owned()),
            ("drop", Some(name), session, false) => Command::Drop { name, session: session.unwrap_or(0) },
            ("drop", None, None, true) => Command::DropAll,
            ("drop", None, Some(number), false) => Command::EndSession { number },
            ("drop", ..) => return Err("drop wants a region's name, --all, or --session and its number".to_owned()),
            ("list" | "pools" | "sessions", ..) => return Err(format!("{command} takes no name, --session or --all")),
            _ => return Err(format!("there is no command '{command}'")),
        };
        let way = match (socket, http) {
            (Some(_), Some(_)) => return Err("--session-socket and --http are two ways; give one".to_owned()),
            (None, Some(_)) if server_uid.is_some() => {
                return Err("--server-uid is for the session socket, not for --http".to_owned());
            }
            (None, Some(url)) => Way::Http(url, certificates),
            (_, None) if !certificates.is_none() => {
                return Err("--cacert, --cert and --key are for --http".to_owned());
            }
            (socket, None) => Way::Socket { path: socket.map_or_else(default_path, PathBuf::from), server_uid },
        };
        Ok(Some(CommandLine { what, way, json }))
    }
}

impl Options {
    fn read(words: &[String]) -> Result<Option<Options>, String> {
        let (mut options, mut words) = (Options::default(), words.iter());
        while let Some(word) = words.next() {
            let (flag, inline) = match word.split_once('=') {
                Some((flag, value)) if flag.starts_with("--") => (flag, Some(value.to_owned())),
                _ => (word.as_str(), None),
            };
            let mut value = || inline.clone().or_else(|| words.next().cloned()).ok_or(format!("{flag} wants a value"));
            match flag {
                "-h" | "--help" => return Ok(None),
                "--session-socket" => options.socket = Some(value()?),
                "--server-uid" => {
                    let text = value()?;
                    options.server_uid = Some(text.parse().map_err(|_| format!("'{text}' is no user's number"))?);
                }
                "--http" => options.http = Some(value()?),
                "--session" => {
                    let text = value()?;
                    let number = text.parse().ok().filter(|number| *number > 0);
                    options.session = Some(number.ok_or(format!("'{text}' is no session's number"))?);
                }
                "--all" if inline.is_none() => options.all = true,
                "--json" if inline.is_none() => options.json = true,
                _ if options.certificates.take(flag, &mut value)? => {}
                // All words after `--` are names, even if they begin with a dash.
                "--" => options.words.extend(words.by_ref().cloned()),
                _ if flag.starts_with('-') && flag.len() > 1 => return Err(no_option(word, USAGE)),
                _ => options.words.push(word.clone()),
            }
        }
        Ok(Some(options))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &[&str], expect: Result<Command, &str>) {
        let words: Vec<String> = line.iter().map(|&word| word.to_owned()).collect();
        let found = CommandLine::read(&words).map(|command_line| command_line.expect("no help was asked for").what);
        assert_eq!(found, expect.map_err(str::to_owned), "{line:?}");
    }

    #[test]
    fn each_command_has_its_words() {
        check(&["list"], Ok(Command::List));
        check(&["pools", "--json"], Ok(Command::Pools));
        check(&["sessions", "--session-socket=/s", "--server-uid", "7"], Ok(Command::Sessions));
        check(&["show", "a"], Ok(Command::Show { name: "a".into() }));
        check(&["show", "--session", "3"], Ok(Command::ShowSession { number: 3 }));
        check(&["drop", "a"], Ok(Command::Drop { name: "a".into(), session: 0 }));
        check(&["drop", "--session=3", "a"], Ok(Command::Drop { name: "a".into(), session: 3 }));
        check(&["drop", "--all"], Ok(Command::DropAll));
        check(&["drop", "--session", "3"], Ok(Command::EndSession { number: 3 }));
        check(&["drop", "--", "--all"], Ok(Command::Drop { name: "--all".into(), session: 0 }));
        check(&["drop", "a=b"], Ok(Command::Drop { name: "a=b".into(), session: 0 }));
    }

    #[test]
    fn what_is_not_understood_is_not_done() {
        check(&[], Err("a command is missing"));
        check(&["lst"], Err("there is no command 'lst'"));
        check(&["list", "a"], Err("list takes no name, --session or --all"));
        check(&["drop"], Err("drop wants a region's name, --all, or --session and its number"));
        check(&["drop", "a", "--all"], Err("drop wants a region's name, --all, or --session and its number"));
        check(
            &["drop", "--session", "3", "--all"],
            Err("drop wants a region's name, --all, or --session and its number"),
        );
        check(&["drop", "a", "b"], Err("'b' is one word too many"));
        check(&["drop", "--session", "0"], Err("'0' is no session's number"));
        check(&["drop", "--session"], Err("--session wants a value"));
        check(&["drop", "--all=yes"], Err("'--all' takes no value"));
        check(&["show", "-x"], Err("there is no option '-x'"));
        check(&["list", "--server-uid=root"], Err("'root' is no user's number"));
        check(&["list", "--http=u", "--server-uid=7"], Err("--server-uid is for the session socket, not for --http"));
        check(&["list", "--http=u", "--session-socket=s"], Err("--session-socket and --http are two ways; give one"));
    }
}
