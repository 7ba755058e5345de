//! How does a Unix socket get its file, and who may connect to it?

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nerite_shm::refuse_descriptors;
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};

use crate::unix_socket::UnixSocket;

/// The mode of a socket that only its own user, and root, may connect to.
pub const OWNER_ONLY: u32 = 0o600;

/// The permission bits of a file's mode.
const PERMISSIONS: u32 = 0o7777;

/// The file of a listening Unix socket. Dropping it removes the file if it is still the one that was made.
///
/// It must be dropped before the socket is closed. The kernel does not reuse the inode's number while the socket is open, so the file
/// can be identified until then.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    made: (u64, u64),
}

impl SocketFile {
    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its device and its inode.
    pub fn device_and_inode(&self) -> (u64, u64) {
        self.made
    }

    /// Whether it is still there, neither removed nor replaced.
    pub fn is_there(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.made)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_there() {
            // An error means that it was removed in this moment.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens at `path`. The file gets exactly this mode, whatever the umask is. A stale socket at the path, on which no process listens, is
/// replaced. The new socket is non-blocking.
pub fn bind_unix(path: &Path, kind: SocketType, mode: u32, backlog: i32) -> io::Result<(SocketFile, UnixSocket)> {
    let address = SocketAddrUnix::new(path)?;
    remove_stale(path, kind, &address)?;
    let socket = new_socket(kind)?;
    // Linux gives the file the mode of the socket, less the umask, so no other user can open it in between. If this call fails, the mode is
    // set below. Connections are refused until `listen` in any case.
    let _ = fchmod(&socket, Mode::from_raw_mode(mode));
    bind(&socket, &address).map_err(|errno| cannot_make(path, errno))?;
    let found = fs::symlink_metadata(path)?;
    if !found.file_type().is_socket() {
        return Err(io::Error::other("the file was replaced while it was made; try again, in a directory of your own"));
    }
    let file = SocketFile { path: path.to_owned(), made: identity(&found) };
    if found.mode() & PERMISSIONS != mode {
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        let has = fs::symlink_metadata(path)?.mode() & PERMISSIONS;
        if has != mode {
            return Err(io::Error::other(format!(
                "its file has mode {has:04o} and cannot be given mode {mode:04o}; name a path in another file system"
            )));
        }
    }
    listen(&socket, backlog)?;
    Ok((file, socket))
}

/// Adds to the error which part of the path is missing. The system does not say that.
fn cannot_make(path: &Path, errno: Errno) -> io::Error {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match (errno, directory.map(Path::display)) {
        (Errno::NOENT, Some(directory)) => io::Error::new(
            io::ErrorKind::NotFound,
            format!("there is no directory '{directory}'; make it (`mkdir -p {directory}`), or name another path"),
        ),
        (Errno::NOTDIR, Some(directory)) => {
            io::Error::new(io::ErrorKind::NotADirectory, format!("'{directory}' is no directory; name a path in one"))
        }
        _ => io::Error::from(errno),
    }
}

/// False if the file at `path` is not a socket. True if there is no file.
pub fn may_be_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).map_or(true, |found| found.file_type().is_socket())
}

/// Removes the file of a socket that a server left behind. Fails with `AddrInUse` if a process may listen on the socket.
fn remove_stale(path: &Path, kind: SocketType, address: &SocketAddrUnix) -> io::Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        // `bind` will fail because the file exists.
        return Ok(());
    }
    if !means_stale(connect(&new_socket(kind)?, address)) {
        return Err(io::Error::from(io::ErrorKind::AddrInUse));
    }
    // Another server may have replaced the file meanwhile.
    match fs::symlink_metadata(path) {
        Ok(now) if identity(&now) == identity(&found) => fs::remove_file(path),
        _ => Ok(()),
    }
}

/// Only a refused connection means that no process listens. Any other error comes from a live socket: its queue is full, it is of another
/// type, or this user may not connect to it.
fn means_stale(connected: rustix::io::Result<()>) -> bool {
    connected == Err(Errno::CONNREFUSED)
}

/// A socket that takes no descriptors. A socket that only checks whether a process listens takes none either, because that process may belong to any user.
///
/// The other side may pass the last descriptor of a file whose close takes hours, for example of a TCP connection with SO_LINGER. The kernel would close it
/// on the thread that reads the message or closes the socket. Linux before 6.16 cannot refuse descriptors. On such a kernel the server peeks before it reads
/// ([`crate::peek`]), and closes the socket on another thread ([`UnixSocket`]).
fn new_socket(kind: SocketType) -> rustix::io::Result<UnixSocket> {
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    let takes_descriptors = kernel_refuses_descriptors(&socket).is_err();
    Ok(UnixSocket::own(socket, takes_descriptors))
}

fn kernel_refuses_descriptors(socket: impl AsFd) -> io::Result<()> {
    #[cfg(test)]
    tests::check_kernel()?;
    refuse_descriptors(socket)
}

fn identity(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use std::cell::Cell;
    use std::fs::File;
    use std::os::unix::net::UnixStream;

    use rustix::net::{SendFlags, accept};

    use super::*;
    use crate::descriptors_passed::tests::pass;

    thread_local! {
        /// Whether the sockets that this thread makes are those of a kernel before Linux 6.16.
        static KERNEL_IS_OLD: Cell<bool> = const { Cell::new(false) };
    }

    /// The error of an older kernel for the option that refuses descriptors.
    pub(super) fn check_kernel() -> io::Result<()> {
        if KERNEL_IS_OLD.get() { Err(Errno::NOPROTOOPT.into()) } else { Ok(()) }
    }

    /// Makes sockets as before Linux 6.16.
    pub(crate) fn on_older_kernel<T>(work: impl FnOnce() -> T) -> T {
        KERNEL_IS_OLD.set(true);
        let made = work();
        KERNEL_IS_OLD.set(false);
        made
    }

    fn open(path: &Path, mode: u32) -> io::Result<(SocketFile, UnixSocket)> {
        bind_unix(path, SocketType::STREAM, mode, 1)
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & PERMISSIONS
    }

    #[test]
    fn the_file_has_exactly_the_requested_mode() {
        let folder = tempfile::tempdir().unwrap();
        for requested in [0o600, 0o660, 0o666, 0o777, 0o620] {
            let path = folder.path().join(format!("{requested:o}"));
            let _kept = open(&path, requested).unwrap();
            assert_eq!(mode(&path), requested);
        }
    }

    #[test]
    fn only_a_refused_connection_means_that_no_process_listens() {
        for (connected, stale) in [
            (Ok(()), false),
            (Err(Errno::CONNREFUSED), true),
            (Err(Errno::AGAIN), false),
            (Err(Errno::ACCESS), false),
            (Err(Errno::PERM), false),
            (Err(Errno::PROTOTYPE), false),
            (Err(Errno::NOENT), false),
        ] {
            assert_eq!(means_stale(connected), stale, "{connected:?}");
        }
    }

    #[test]
    fn a_client_cannot_pass_descriptors_and_the_server_can() {
        let folder = tempfile::tempdir().unwrap();
        let (path, file) = (folder.path().join("s"), File::open("/dev/null").unwrap());
        if refuse_descriptors(new_socket(SocketType::STREAM).unwrap()).is_err() {
            return; // The kernel is older than Linux 6.16.
        }
        for kind in [SocketType::STREAM, SocketType::SEQPACKET] {
            let (_file, socket) = bind_unix(&path, kind, OWNER_ONLY, 1).unwrap();
            let client = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
            connect(&client, &SocketAddrUnix::new(&path).unwrap()).unwrap();
            assert_eq!(
                pass(&client, b"x", Some(file.as_fd()), SendFlags::empty()),
                Err(Errno::PERM),
                "before it is accepted"
            );
            let accepted = accept(&socket).unwrap();
            assert_eq!(pass(&client, b"x", Some(file.as_fd()), SendFlags::empty()), Err(Errno::PERM));
            assert_eq!(pass(&client, b"x", None, SendFlags::empty()), Ok(1));
            assert_eq!(pass(&accepted, b"x", Some(file.as_fd()), SendFlags::empty()), Ok(1));
        }
    }

    #[test]
    fn a_socket_whose_queue_is_full_or_whose_type_differs_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let (_file, _socket) = open(&path, OWNER_ONLY).unwrap();
        let waiting: Vec<_> = (0..2).map(|_| UnixStream::connect(&path).unwrap()).collect();
        let in_use = |kind| bind_unix(&path, kind, OWNER_ONLY, 1).unwrap_err().kind();
        assert_eq!(in_use(SocketType::STREAM), io::ErrorKind::AddrInUse, "full");
        assert_eq!(in_use(SocketType::SEQPACKET), io::ErrorKind::AddrInUse, "of another type");
        drop(waiting);
    }

    #[test]
    fn a_file_is_removed_with_its_socket_unless_it_was_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let (file, socket) = open(&path, OWNER_ONLY).unwrap();
        assert!(file.is_there());
        drop((file, socket));
        assert!(!path.exists());
        let (file, _socket) = open(&path, OWNER_ONLY).unwrap();
        fs::remove_file(&path).unwrap();
        let (other, _other_socket) = open(&path, OWNER_ONLY).unwrap();
        assert!(!file.is_there() && other.is_there());
        drop(file);
        assert!(other.is_there(), "the socket of another server was removed");
    }

    #[test]
    fn a_missing_directory_is_named_with_the_cure() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("gone");
        let error = open(&directory.join("s"), OWNER_ONLY).unwrap_err();
        let place = directory.display();
        let text = format!("there is no directory '{place}'; make it (`mkdir -p {place}`), or name another path");
        assert_eq!((error.kind(), error.to_string()), (io::ErrorKind::NotFound, text));
        fs::write(&directory, "").unwrap();
        let error = open(&directory.join("s"), OWNER_ONLY).unwrap_err();
        assert_eq!(error.to_string(), format!("'{place}' is no directory; name a path in one"));
    }

    #[test]
    fn a_stale_socket_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let (file, _socket) = open(&path, OWNER_ONLY).unwrap();
        assert!(file.is_there());
    }
}
