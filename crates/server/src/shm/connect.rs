//! Where is the server, and why can it not be reached?

use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nerite_client::{Error, Session, SessionOptions, default_path};

/// The file at the path of a session socket.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FoundAtPath {
    Socket {
        uid: u32,
        mode: u32,
    },
    SomethingElse,
    Nothing,
    /// This user may not enter a directory of the path.
    Hidden,
}

/// Opens a session; the error says where the socket was expected and what to do.
pub(crate) async fn connect(path: &Path, server_uid: Option<u32>) -> Result<Session, String> {
    let options = SessionOptions::default().operator();
    let options = match server_uid {
        Some(uid) => options.server_uid(uid),
        None => options,
    };
    match Session::connect_to(path, &options).await {
        Ok(session) => Ok(session),
        Err(Error::Connect { reason, .. }) => {
            let uid = rustix::process::geteuid().as_raw();
            Err(why(path, &reason, &look(path), uid, &elsewhere(path, uid)))
        }
        Err(error @ Error::Untrusted { .. }) => Err(error.to_string()),
        // All other errors say what is wrong by themselves.
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn why(path: &Path, reason: &str, found: &FoundAtPath, uid: u32, elsewhere: &[PathBuf]) -> String {
    let path = path.display();
    let cure = match found {
        FoundAtPath::Nothing => {
            let mut cure =
                "is a server running, by this user and with sessions? Its log says `Started sessions at <path>`; \
                            give that path with --session-socket"
                    .to_owned();
            if let Some(other) = elsewhere.first() {
                cure += &format!(", such as {}, which is there", other.display());
            }
            cure
        }
        FoundAtPath::Socket { uid: owner, mode } if *owner != uid && uid != 0 => format!(
            "the socket belongs to user {owner}, mode {mode:04o}, and this is user {uid}; run this as user {owner} or as root"
        ),
        FoundAtPath::Socket { .. } => {
            "nobody listens there any more; the server ended without a goodbye, start it again".to_owned()
        }
        FoundAtPath::SomethingElse => "what is there is no socket; give the server's with --session-socket".to_owned(),
        FoundAtPath::Hidden => format!("user {uid} may not look there; run this as the server's user or as root"),
    };
    format!("no server at session socket {path} ({reason}): {cure}")
}

fn look(path: &Path) -> FoundAtPath {
    match std::fs::metadata(path) {
        Ok(found) if found.file_type().is_socket() => {
            FoundAtPath::Socket { uid: found.uid(), mode: found.mode() & 0o7777 }
        }
        Ok(_) => FoundAtPath::SomethingElse,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => FoundAtPath::Hidden,
        Err(_) => FoundAtPath::Nothing,
    }
}

/// Sockets at other places that a server may have taken for its default: with a runtime directory or without one.
fn elsewhere(path: &Path, uid: u32) -> Vec<PathBuf> {
    let socket = "session.sock";
    let mut places = vec![
        default_path(),
        PathBuf::from(format!("/run/user/{uid}/nerite/{socket}")),
        PathBuf::from(format!("/tmp/nerite-{uid}/{socket}")),
    ];
    places.retain(|place| place != path && matches!(look(place), FoundAtPath::Socket { .. }));
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(found: FoundAtPath, uid: u32, elsewhere: &[&str], expect: &str) {
        let elsewhere: Vec<PathBuf> = elsewhere.iter().map(PathBuf::from).collect();
        let text = why(Path::new("/s"), "reason", &found, uid, &elsewhere);
        let cure = text.strip_prefix("no server at session socket /s (reason): ");
        assert_eq!(cure, Some(expect));
    }

    #[test]
    fn the_path_and_the_cure_are_said() {
        let start = "is a server running, by this user and with sessions? Its log says `Started sessions at <path>`; give \
                     that path with --session-socket";
        check(FoundAtPath::Nothing, 7, &[], start);
        check(FoundAtPath::Nothing, 7, &["/tmp/a", "/b"], &format!("{start}, such as /tmp/a, which is there"));
        let dead = "nobody listens there any more; the server ended without a goodbye, start it again";
        check(FoundAtPath::Socket { uid: 7, mode: 0o600 }, 7, &[], dead);
        check(FoundAtPath::Socket { uid: 7, mode: 0o600 }, 0, &[], dead);
        check(
            FoundAtPath::Socket { uid: 8, mode: 0o600 },
            7,
            &[],
            "the socket belongs to user 8, mode 0600, and this is user 7; run this as user 8 or as root",
        );
        check(
            FoundAtPath::SomethingElse,
            7,
            &[],
            "what is there is no socket; give the server's with --session-socket",
        );
        check(FoundAtPath::Hidden, 7, &[], "user 7 may not look there; run this as the server's user or as root");
    }
}
