//! Which servers does this program trust with its data?
//!
//! Any user can make a directory with a socket in /tmp, and wait there for the tensors of other users. So before it sends anything, a client checks who made
//! the directory and who listens.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bits of a directory's mode that let others put a socket there.
const WRITABLE_BY_OTHERS: u32 = 0o022;
const ROOT: u32 = 0;

/// Why a socket is not used, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Distrust {
    pub(super) reason: String,
    pub(super) cure: String,
}

/// The users whose servers a client trusts: its own user, root, and a user that the program named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trust {
    pub(super) own_uid: u32,
    pub(super) server_uid: Option<u32>,
}

/// A directory in which any user could have made a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Directory {
    pub(super) path: PathBuf,
    pub(super) uid: u32,
    pub(super) mode: u32,
    pub(super) is_directory: bool,
}

impl Directory {
    /// Looks at the file at the path, and follows no link. `None` if there is no file, or if it cannot be examined.
    pub(super) fn look(path: &Path) -> Option<Directory> {
        let found = std::fs::symlink_metadata(path).ok()?;
        let (uid, mode, is_directory) = (found.uid(), found.mode() & 0o7777, found.is_dir());
        Some(Directory { path: path.to_owned(), uid, mode, is_directory })
    }
}

impl Trust {
    /// Whether a server is trusted. `directory` is the directory of its socket, or `None` if the program chose the path. `peer_uid` is the user who listens, or
    /// `None` before the socket is connected.
    pub(super) fn check(&self, directory: Option<&Directory>, peer_uid: Option<u32>) -> Result<(), Distrust> {
        let own = self.own_uid;
        if let Some(Directory { path, uid, mode, is_directory }) = directory {
            let path = path.display();
            let distrust = |reason: String| {
                let cure =
                    format!("remove '{path}' and start the server anew, or name its socket with NERITE_SESSION_SOCKET");
                Err(Distrust { reason, cure })
            };
            if !is_directory {
                return distrust(format!("'{path}', made by user {uid}, is no directory or a link to one"));
            }
            if *uid != own && *uid != ROOT {
                return distrust(format!("its directory '{path}' belongs to user {uid}, and this is user {own}"));
            }
            if mode & WRITABLE_BY_OTHERS != 0 {
                return distrust(format!(
                    "its directory '{path}' has mode {mode:04o}: others could put a socket there"
                ));
            }
        }
        match peer_uid {
            Some(uid) if uid != own && uid != ROOT && Some(uid) != self.server_uid => Err(Distrust {
                reason: format!("the server there is user {uid}, and this is user {own}"),
                cure: format!("if that is the server you mean, name its user: NERITE_SERVER_UID={uid}"),
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(
        directory: Option<(u32, u32, bool)>,
        peer_uid: Option<u32>,
        server_uid: Option<u32>,
        expect: Option<&str>,
    ) {
        let directory =
            directory.map(|(uid, mode, is_directory)| Directory { path: "/d".into(), uid, mode, is_directory });
        let checked = Trust { own_uid: 7, server_uid }.check(directory.as_ref(), peer_uid);
        assert_eq!(checked.err().map(|distrust| distrust.reason).as_deref(), expect, "{directory:?} {peer_uid:?}");
    }

    #[test]
    fn a_client_talks_to_its_own_user_to_root_and_to_whom_it_was_told() {
        check(None, None, None, None);
        check(None, Some(7), None, None);
        check(None, Some(0), None, None);
        check(None, Some(8), Some(8), None);
        check(None, Some(7), Some(8), None);
        check(None, Some(8), None, Some("the server there is user 8, and this is user 7"));
        check(None, Some(8), Some(9), Some("the server there is user 8, and this is user 7"));
        check(Some((7, 0o700, true)), Some(8), None, Some("the server there is user 8, and this is user 7"));
    }

    #[test]
    fn the_default_directory_is_closed_to_others_and_of_this_user_or_root() {
        check(Some((7, 0o700, true)), Some(7), None, None);
        check(Some((0, 0o755, true)), Some(0), None, None);
        check(Some((8, 0o700, true)), None, None, Some("its directory '/d' belongs to user 8, and this is user 7"));
        check(Some((8, 0o700, true)), Some(7), None, Some("its directory '/d' belongs to user 8, and this is user 7"));
        check(
            Some((8, 0o700, true)),
            Some(8),
            Some(8),
            Some("its directory '/d' belongs to user 8, and this is user 7"),
        );
        let open = |mode: &str| format!("its directory '/d' has mode {mode}: others could put a socket there");
        check(Some((7, 0o720, true)), Some(7), None, Some(&open("0720")));
        check(Some((7, 0o1777, true)), Some(7), None, Some(&open("1777")));
        check(Some((7, 0o777, false)), Some(7), None, Some("'/d', made by user 7, is no directory or a link to one"));
    }
}
