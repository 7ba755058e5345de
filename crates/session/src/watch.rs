//! How is it noticed that the socket's file is gone?

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::limits::LOOK_AGAIN_AFTER;

/// Bytes of events that are read at a time. What they say is not looked at: whoever waits looks at the file.
const EVENT_BYTES: usize = 1024;

/// Tells when something happens to a socket's file.
///
/// The kernel tells it (inotify), so nothing is asked at intervals. A removed file, and one that another was renamed over, lose a
/// link, which is a change of their attributes. Nothing is told of directories further up that are renamed or mounted over.
pub(crate) struct Watch {
    /// `None` where the system has no inotify left: then the file is looked at again after a while.
    inotify: Option<AsyncFd<OwnedFd>>,
}

impl Watch {
    /// Watches the file at `path` and the directory it lies in. What happened before is not told, so the file is to be looked at once
    /// the watch is there. Needs the runtime's context.
    pub(crate) fn new(path: &Path) -> Watch {
        let inotify = watch(path).inspect_err(|error| {
            log::debug!("session socket '{}' is looked at every {LOOK_AGAIN_AFTER:?}: {error}", path.display());
        });
        Watch { inotify: inotify.ok() }
    }

    /// Waits until something has happened.
    pub(crate) async fn changed(&self) {
        let Some(inotify) = &self.inotify else { return tokio::time::sleep(LOOK_AGAIN_AFTER).await };
        let read =
            inotify.async_io(Interest::READABLE, |inotify| Ok(rustix::io::read(inotify, &mut [0; EVENT_BYTES])?));
        if read.await.is_err() {
            // Not known to happen. The file is looked at all the same.
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

fn watch(path: &Path) -> std::io::Result<AsyncFd<OwnedFd>> {
    let inotify = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    let itself = WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF | WatchFlags::DONT_FOLLOW;
    let file = add_watch(&inotify, path, itself | WatchFlags::ATTRIB);
    let directory = add_watch(&inotify, path.parent().unwrap_or(Path::new("/")), itself | WatchFlags::ONLYDIR);
    // Either is of use: a file that is not there cannot be watched, and a directory may not be readable.
    file.or(directory)?;
    crate::socket::watch(inotify, Interest::READABLE)
}
