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
        // In /tmp anybody could have made it before us, or a link in its place.
        let found = fs::symlink_metadata(directory).map_err(system)?;
        let mode = found.mode() & 0o7777;
        if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() || mode & 0o077 != 0 {
            return Err(BindError::Directory { path, uid: found.uid(), mode });
        }
        Listener::bind(&path, false)
    }

    /// Listens at `path`; with `others` also for other users, whose credentials decide then. A socket there that nobody
    /// listens at any more is replaced. Needs the runtime's context.
    pub fn bind(path: &Path, others: bool) -> Result<Listener, BindError> {
        let system = |cause: io::Error| match cause.kind() {
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

fn seqpacket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
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
