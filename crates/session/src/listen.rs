//! Where is the session socket, and is that directory safe?

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nerite_listen::{Endpoint, OWNER_ONLY, SocketFile, bind};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, statat};

/// The mode of a socket that other users may connect to. The server then decides by the peer's user.
const ALL_USERS: u32 = 0o666;
/// The bits of a directory's mode that permit access to the group and others.
const OTHERS: u32 = 0o077;
/// The name of the first server's socket in the default directory.
const NAME: &str = "session.sock";

/// Why there is no session socket.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another server uses the socket.
    #[error("session socket '{}' is in use by another server", .0.display())]
    InUse(PathBuf),
    /// There is a file that is not a socket.
    #[error("session socket '{}': there is a file that is no socket; remove it or name another path", .0.display())]
    NoSocket(PathBuf),
    /// Other users can write to the default directory, so they could put a socket there.
    #[error("session socket '{}': {fault}", .path.display())]
    Directory {
        /// The socket's path.
        path: PathBuf,
        /// The fault, and the cure.
        fault: String,
    },
    /// The system refused.
    #[error("session socket '{}': {cause}", .path.display())]
    System {
        /// The socket's path.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
}

/// The path of a session socket.
#[derive(Clone, Debug)]
pub struct Location {
    path: PathBuf,
    mode: u32,
    /// Whether the directory is the default one, which must be accessible only to this user.
    is_default: bool,
}

/// A socket that clients can connect to. Its file is removed when this value is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: Arc<nerite_listen::Listener>,
    location: Location,
}

/// What was found at the path of the default directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundDirectory {
    /// Its owner.
    pub uid: u32,
    /// Its permissions.
    pub mode: u32,
    /// Whether it is a directory. False for a link to one.
    pub is_directory: bool,
}

/// Where clients look for a server of their own user: `$XDG_RUNTIME_DIR/nerite/session.sock`, or without that variable `/tmp/nerite-<uid>/session.sock`.
pub fn default_path() -> PathBuf {
    default_directory().join(NAME)
}

fn default_directory() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|directory| !directory.is_empty()) {
        Some(directory) => PathBuf::from(directory).join("nerite"),
        None => PathBuf::from(format!("/tmp/nerite-{}", own_uid())),
    }
}

/// Checks whether the default directory may contain the socket of user `own_uid`. The error is the fault and the cure.
pub fn check_directory(directory: &Path, found: FoundDirectory, own_uid: u32) -> Result<(), String> {
    let FoundDirectory { uid, mode, is_directory } = found;
    let shown = directory.display();
    if !is_directory {
        return Err(format!(
            "'{shown}', which user {uid} made, is no directory or a link to one; remove it, and the server makes it anew"
        ));
    }
    if uid != own_uid {
        return Err(format!(
            "its directory '{shown}' belongs to user {uid}, and the server is user {own_uid}; remove that directory, or give the \
             server an XDG_RUNTIME_DIR of its own user"
        ));
    }
    if mode & OTHERS != 0 {
        return Err(format!("its directory '{shown}' has mode {mode:04o}, which lets others in; `chmod 0700 {shown}`"));
    }
    Ok(())
}

impl Location {
    /// [`default_path`], which one server of the user has. Its directory is created if necessary, and must be accessible only to this user.
    pub fn default_of_user() -> Location {
        Location { path: default_path(), mode: OWNER_ONLY, is_default: true }
    }

    /// `session-<port>.sock` in the same directory. Clients look there for the server with this HTTP port, so each server of the user can be found.
    pub fn of_http_port(port: u16) -> Location {
        let path = default_directory().join(format!("session-{port}.sock"));
        Location { path, mode: OWNER_ONLY, is_default: true }
    }

    /// A path that the operator chose. Its directory is not checked. With `others` other users may connect, and the server decides by their credentials.
    pub fn at(path: &Path, others: bool) -> Location {
        let mode = if others { ALL_USERS } else { OWNER_ONLY };
        Location { path: path.to_owned(), mode, is_default: false }
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Listens here. Replaces a stale socket, on which no process listens.
    pub fn bind(&self) -> Result<Listener, BindError> {
        let directory = self.is_default.then(|| self.open_own_directory()).transpose()?;
        let socket = bind(&self.endpoint()).map_err(|error| match error {
            nerite_listen::BindError::InUse(_) => BindError::InUse(self.path.clone()),
            nerite_listen::BindError::NoSocket(_) => BindError::NoSocket(self.path.clone()),
            nerite_listen::BindError::Refused { cause, .. } => self.system(cause),
        })?;
        if let Some((directory, file)) = directory.zip(socket.file()) {
            self.check_made(&directory, file)?;
        }
        Ok(Listener { socket: Arc::new(socket), location: self.clone() })
    }

    /// Creates the default directory if necessary, and checks it without following links.
    /// `/tmp` is sticky: only root and this user can rename or remove this user's
    /// files. So a directory that was checked still belongs to this user alone when
    /// the socket is created in it. Another user can create the directory in `/tmp` first. That only prevents the server from having its socket there,
    /// because the server and its clients refuse a directory of another user.
    fn open_own_directory(&self) -> Result<OwnedFd, BindError> {
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(self.system(error)),
            _ => {}
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(directory, flags, Mode::empty()).map_err(|errno| self.system(errno.into()))?;
        let opened = File::from(opened);
        let found = opened.metadata().map_err(|cause| self.system(cause))?;
        let found =
            FoundDirectory { uid: found.uid(), mode: found.mode() & 0o7777, is_directory: found.file_type().is_dir() };
        match check_directory(directory, found, own_uid()) {
            Ok(()) => Ok(opened.into()),
            Err(fault) => Err(BindError::Directory { path: self.path.clone(), fault }),
        }
    }

    /// Checks that the socket was created in the directory that was checked. If the parent directory is not sticky, another user can replace the
    /// checked directory. A socket that was created in the replacement is closed, so no client can connect to it.
    fn check_made(&self, directory: &OwnedFd, file: &SocketFile) -> Result<(), BindError> {
        let name = self.path.file_name().unwrap_or_default();
        let found = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| self.system(errno.into()))?;
        let is_it = (found.st_dev, found.st_ino) == file.device_and_inode()
            && FileType::from_raw_mode(found.st_mode) == FileType::Socket
            && found.st_uid == own_uid()
            && found.st_mode & 0o7777 == self.mode;
        if is_it {
            return Ok(());
        }
        let fault = "its directory was replaced while the socket was made; give the server an XDG_RUNTIME_DIR where only its own \
                     user may write";
        Err(BindError::Directory { path: self.path.clone(), fault: fault.to_owned() })
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::Unix { path: self.path.clone(), mode: self.mode, packets: true }
    }

    fn system(&self, cause: io::Error) -> BindError {
        BindError::System { path: self.path.clone(), cause }
    }
}

impl Listener {
    /// Listens at a path that the operator chose, see [`Location::at`].
    pub fn bind(path: &Path, others: bool) -> Result<Listener, BindError> {
        Location::at(path, others).bind()
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        self.location.path()
    }

    pub(crate) fn location(&self) -> &Location {
        &self.location
    }

    /// Whether clients still find the socket. False if its file was removed or replaced.
    pub(crate) fn is_there(&self) -> bool {
        self.socket.file().is_some_and(SocketFile::is_there)
    }

    pub(crate) fn socket(&self) -> &Arc<nerite_listen::Listener> {
        &self.socket
    }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    fn default_in(directory: &Path) -> Location {
        Location { path: directory.join(NAME), mode: OWNER_ONLY, is_default: true }
    }

    #[test]
    fn the_socket_is_the_users_own_and_removed_with_its_listener() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        for (others, expect) in [(false, 0o600), (true, 0o666)] {
            let listener = Listener::bind(&path, others).unwrap();
            assert_eq!(mode(listener.path()), expect);
            drop(listener);
            assert!(!path.exists());
        }
    }

    #[test]
    fn a_socket_in_use_is_kept_and_a_stale_one_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let first = Listener::bind(&path, false).unwrap();
        assert!(matches!(Listener::bind(&path, false), Err(BindError::InUse(_))));
        // A killed server leaves a file without a listener.
        let kept = directory.path().join("kept");
        fs::rename(&path, &kept).unwrap();
        drop(first);
        fs::rename(&kept, &path).unwrap();
        let second = Listener::bind(&path, false).unwrap();
        // A file that replaced the socket is not removed.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "other").unwrap();
        drop(second);
        assert_eq!(fs::read(&path).unwrap(), b"other");
        assert!(matches!(Listener::bind(&path, false), Err(BindError::NoSocket(_))), "a file is no socket to replace");
    }

    #[track_caller]
    fn check(uid: u32, mode: u32, is_directory: bool, fault: Option<&str>) {
        let found = FoundDirectory { uid, mode, is_directory };
        let checked = check_directory(Path::new("/d"), found, 7);
        match fault {
            None => assert_eq!(checked, Ok(()), "{found:?}"),
            Some(part) => assert!(checked.as_ref().is_err_and(|text| text.contains(part)), "{found:?}: {checked:?}"),
        }
    }

    #[test]
    fn the_default_directory_is_the_servers_own_and_closed_to_others() {
        check(7, 0o700, true, None);
        check(7, 0o500, true, None);
        for mode in [0o701, 0o710, 0o770, 0o755, 0o1777] {
            check(7, mode, true, Some(&format!("has mode {mode:04o}, which lets others in; `chmod 0700 /d`")));
        }
        check(8, 0o700, true, Some("'/d' belongs to user 8, and the server is user 7; remove that directory"));
        check(0, 0o700, true, Some("belongs to user 0, and the server is user 7"));
        check(8, 0o777, false, Some("'/d', which user 8 made, is no directory or a link to one"));
    }

    #[test]
    fn the_default_directory_is_created_and_a_link_is_not_followed() {
        let above = tempfile::tempdir().unwrap();
        let (own, link) = (above.path().join("own"), above.path().join("link"));
        let listener = default_in(&own).bind().unwrap();
        assert_eq!((mode(&own), mode(listener.path())), (0o700, 0o600));
        symlink(&own, &link).unwrap();
        assert!(matches!(default_in(&link).bind(), Err(BindError::Directory { .. })));
        drop(listener);
        fs::set_permissions(&own, Permissions::from_mode(0o750)).unwrap();
        assert!(matches!(default_in(&own).bind(), Err(BindError::Directory { .. })));
        assert!(!own.join(NAME).exists());
        fs::write(above.path().join("file"), "").unwrap();
        assert!(matches!(default_in(&above.path().join("file")).bind(), Err(BindError::Directory { .. })));
    }

    #[test]
    fn a_socket_outside_the_directory_that_was_checked_is_not_kept() {
        let (checked, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let location = default_in(&checked.path().join("nerite"));
        let directory = location.open_own_directory().unwrap();
        let elsewhere = bind(&Location::at(&other.path().join(NAME), false).endpoint()).unwrap();
        let file = elsewhere.file().unwrap();
        assert!(location.check_made(&directory, file).is_err());
        let _squatted = bind(&location.endpoint()).unwrap();
        assert!(matches!(location.check_made(&directory, file), Err(BindError::Directory { .. })));
    }
}
