//! Who may open sessions, where, and how much is lent?

use std::path::PathBuf;
use std::time::Duration;

use nerite_session::limits::{HELLO_WITHIN, SESSIONS_MAX, SESSIONS_PER_USER_MAX};
use nerite_shm::LeaseLimits;

use crate::flags::{BadValue, Values, bad};

/// The session socket and what it lends.
#[derive(Debug)]
pub struct Sessions {
    /// Where it is.
    pub socket: SessionSocket,
    /// Users besides the server's own.
    pub allow_uids: Vec<u32>,
    /// The limits on lent memory.
    pub limits: LeaseLimits,
    /// Sessions of one user, unless it is the server's own.
    pub per_user_max: usize,
    /// How long a connection may take to say Hello, if there is a limit.
    pub hello_within: Option<Duration>,
}

/// Where sessions are opened.
#[derive(Debug, PartialEq, Eq)]
pub enum SessionSocket {
    /// Under the user's runtime directory. If that fails, the server starts without the socket.
    Default,
    /// At this path. If that fails, the server does not start.
    At(PathBuf),
    /// There is no session socket.
    Off,
}

pub(super) fn sessions(values: &Values<'_>) -> Result<Sessions, BadValue> {
    let socket = match values.text("session-socket") {
        None | Some("") => SessionSocket::Default,
        Some("off") => SessionSocket::Off,
        Some(path) => SessionSocket::At(PathBuf::from(path)),
    };
    let uid = |word: &str| {
        let reason = || format!("'{word}' is no user's number");
        word.parse().map_err(|_| BadValue { flag: "session-allow-uid", reason: reason() })
    };
    let allow_uids = values.all("session-allow-uid").map(uid).collect::<Result<_, _>>()?;
    let LeaseLimits { bytes_max, .. } = LeaseLimits::default();
    let bytes_max = values.int("lease-max-bytes", bytes_max)?;
    let session_bytes_max = values.int("session-max-bytes", bytes_max / 2)?;
    Ok(Sessions {
        socket,
        allow_uids,
        limits: LeaseLimits { bytes_max, session_bytes_max },
        per_user_max: per_user_max(values)?,
        hello_within: values.time_limit("session-hello-timeout", HELLO_WITHIN)?,
    })
}

fn per_user_max(values: &Values<'_>) -> Result<usize, BadValue> {
    const FLAG: &str = "sessions-per-user-max";
    let requested = values.int(FLAG, SESSIONS_PER_USER_MAX)?;
    if (1..=SESSIONS_MAX).contains(&requested) {
        return Ok(requested);
    }
    Err(bad(
        FLAG,
        format!(
            "one user may have {requested} sessions, and there are {SESSIONS_MAX} in all; give 1 to {SESSIONS_MAX}"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags;

    #[track_caller]
    fn check(line: &[&str], expect: Result<(SessionSocket, &[u32], u64, u64), &str>) {
        let words: Vec<String> = line.iter().map(|&word| word.to_owned()).collect();
        let given = flags::parse(&words).expect("known flags");
        let found = sessions(&Values(&given));
        let found = found.map(|s| (s.socket, s.allow_uids, s.limits.bytes_max, s.limits.session_bytes_max));
        match (found, expect) {
            (Ok(found), Ok(expect)) => assert_eq!((found.0, &found.1[..], found.2, found.3), expect, "{line:?}"),
            (Err(found), Err(expect)) => assert_eq!(found.reason, expect, "{line:?}"),
            (found, _) => panic!("{line:?} gives {found:?}"),
        }
    }

    #[test]
    fn limits_of_users_and_hellos_are_sensible_numbers() {
        let read = |line: &str| {
            let given = flags::parse(&[line.to_owned()]).expect("a known flag");
            sessions(&Values(&given)).map(|s| (s.per_user_max, s.hello_within)).map_err(|error| error.reason)
        };
        let ten = Some(Duration::from_secs(10));
        assert_eq!(read("--id=x"), Ok((64, ten)));
        assert_eq!(read("--sessions-per-user-max=256"), Ok((256, ten)));
        assert_eq!(read("--session-hello-timeout=0.5"), Ok((64, Some(Duration::from_millis(500)))));
        assert_eq!(read("--session-hello-timeout=0"), Ok((64, None)));
        for number in [0, 257] {
            let text = format!("one user may have {number} sessions, and there are 256 in all; give 1 to 256");
            assert_eq!(read(&format!("--sessions-per-user-max={number}")), Err(text));
        }
        let far = "a time is 0 to 1000000000 seconds. Got 1e300".to_owned();
        assert_eq!(read("--session-hello-timeout=1e300"), Err(far));
    }

    #[test]
    fn one_session_gets_half_of_all_unless_it_is_said() {
        check(
            &["--session-socket=/run/a.sock", "--lease-max-bytes=100"],
            Ok((SessionSocket::At("/run/a.sock".into()), &[], 100, 50)),
        );
        check(
            &["--session-socket=off", "--lease-max-bytes=100", "--session-max-bytes=7", "--session-allow-uid=0"],
            Ok((SessionSocket::Off, &[0], 100, 7)),
        );
        check(
            &["--lease-max-bytes=8", "--session-allow-uid=1", "--session-allow-uid=2"],
            Ok((SessionSocket::Default, &[1, 2], 8, 4)),
        );
        check(&["--session-allow-uid=root"], Err("'root' is no user's number"));
    }
}
