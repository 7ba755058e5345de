//! Where do clients find the server?

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use tokio::net::UnixListener;

use crate::limits::BACKLOG;
use crate::socket::Socket;

/// Why there is no session socket.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another server listens there.
    #[error("session socket '{}' is in use by another server", .0.display())]
    InUse(PathBuf),
    /// Something that is no socket is there.
    #[error("session socket '{}': there is a file that is no socket; remove it or name another path", .0.display())]
    NoSocket(PathBuf),
    /// The directory is open to others, who could put their own socket there.
    #[error("session socket '{}': its directory belongs to user {uid}, mode {mode:04o}; it must be this user's alone, mode 0700", .path.display())]
    Directory {
        /// The socket's path.
        path: PathBuf,
        /// The directory's owner.
        uid: u32,
        /// The directory's mode.
        mode: u32,
    },
    /// The system refused.
    #[error("session socket '{}': {cause}", .path.display())]
    System {
        /// The socket's path.
        path: PathBuf,
        /// The system's words.
        cause: io::Error,
    },
}

/// A socket that clients can connect to. Its file goes with it.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode: what we made, and may remove.
    made: (u64, u64),
}

/// Where clients look for a server of their own user: `$XDG_RUNTIME_DIR/nerite/session.sock`, and without that variable
/// `/tmp/nerite-<uid>/session.sock`.
pub fn default_path() -> PathBuf {
    let directory = match std::env::var_os("XDG_RUNTIME_DIR").filter(|directory| !directory.is_empty()) {
        Some(directory) => PathBuf::from(directory).join("nerite"),
        None => PathBuf::from(format!("/tmp/nerite-{}", rustix::process::geteuid().as_raw())),
    };
    directory.join("session.sock")
}

impl Listener {
    /// Listens at [`default_path`], whose directory is made if need be and must be this user's alone.
    pub fn bind_default() -> Result<Listener, BindError> {
        let path = default_path();
        let directory = path.parent().unwrap_or(Path::new("/"));
        let system = |cause| BindError::System { path: path.clone(), cause };
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(system(error)),
            _ => {}
        }
        check_own(&path, directory)?;
        Listener::bind(&path, false)
    }

    /// Listens at `path`; with `others` also for other users, whose credentials decide then. A socket there that nobody
    /// listens at any more is replaced. Needs the runtime's context.
    pub fn bind(path: &Path, others: bool) -> Result<Listener, BindError> {
        let system = |cause: io::Error| match cause.kind() {
            io::ErrorKind::AddrInUse if is_no_socket(path) => BindError::NoSocket(path.to_owned()),
            io::ErrorKind::AddrInUse => BindError::InUse(path.to_owned()),
            _ => BindError::System { path: path.to_owned(), cause },
        };
        let address = SocketAddrUnix::new(path).map_err(|error| system(error.into()))?;
        remove_stale(path, &address).map_err(system)?;
        let socket = seqpacket().map_err(|error| system(error.into()))?;
        bind(&socket, &address).map_err(|error| system(error.into()))?;
        // Nobody can connect before `listen`, so the mode is in force in time.
        let mode = if others { 0o666 } else { 0o600 };
        fs::set_permissions(path, Permissions::from_mode(mode)).map_err(system)?;
        listen(&socket, BACKLOG).map_err(|error| system(error.into()))?;
        let made = fs::symlink_metadata(path).map_err(system)?;
        let listener = UnixListener::from_std(net::UnixListener::from(socket)).map_err(system)?;
        Ok(Listener { listener, path: path.to_owned(), made: (made.dev(), made.ino()) })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) async fn accept(&self) -> io::Result<Socket> {
        Socket::new(self.listener.accept().await?.0)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another server may have replaced the file by its own.
        if fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.made) {
            // Already gone is as good.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// In /tmp anybody could have made the directory before us, or put a link in its place.
fn check_own(path: &Path, directory: &Path) -> Result<(), BindError> {
    let found = fs::symlink_metadata(directory);
    let found = found.map_err(|cause| BindError::System { path: path.to_owned(), cause })?;
    let mode = found.mode() & 0o7777;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() || mode & 0o077 != 0 {
        return Err(BindError::Directory { path: path.to_owned(), uid: found.uid(), mode });
    }
    Ok(())
}

fn seqpacket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn is_no_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket())
}

/// Removes a socket that its server left behind. Err if one listens there.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> io::Result<()> {
    if !fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        return Ok(());
    }
    match connect(&seqpacket()?, address) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        // Full for the moment, or of another type: somebody is there.
        _ => Err(io::Error::from(io::ErrorKind::AddrInUse)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[tokio::test]
    async fn the_socket_is_the_users_own_and_goes_with_its_listener() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        for (others, expect) in [(false, 0o600), (true, 0o666)] {
            let listener = Listener::bind(&path, others).unwrap();
            assert_eq!(mode(listener.path()), expect);
            drop(listener);
            assert!(!path.exists());
        }
    }

    #[tokio::test]
    async fn a_socket_in_use_is_left_alone_and_a_stale_one_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let first = Listener::bind(&path, false).unwrap();
        assert!(matches!(Listener::bind(&path, false), Err(BindError::InUse(_))));
        // What a killed server leaves: the file without a listener.
        let kept = directory.path().join("kept");
        fs::rename(&path, &kept).unwrap();
        drop(first);
        fs::rename(&kept, &path).unwrap();
        let second = Listener::bind(&path, false).unwrap();
        // And what another one put in its place is not removed.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "other").unwrap();
        drop(second);
        assert_eq!(fs::read(&path).unwrap(), b"other");
        assert!(matches!(Listener::bind(&path, false), Err(BindError::NoSocket(_))), "a file is no socket to replace");
    }

    #[track_caller]
    fn check_directory(mode: u32, own: bool) {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(mode)).unwrap();
        let checked = check_own(&directory.path().join("s"), directory.path());
        assert_eq!(checked.is_ok(), own, "{mode:o}: {checked:?}");
    }

    #[test]
    fn a_directory_open_to_others_or_a_link_is_no_place_for_the_default() {
        check_directory(0o700, true);
        check_directory(0o701, false);
        check_directory(0o770, false);
        check_directory(0o1777, false);
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(directory.path(), &link).unwrap();
        assert!(check_own(&link.join("s"), &link).is_err());
    }
}
