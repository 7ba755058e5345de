//! How does the server notice that the file of a socket was removed?

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::limits::RECHECK_AFTER;

/// Bytes of events that are read at one time. The events are not parsed, because the caller checks the file.
const EVENT_BYTES: usize = 1024;

/// Reports changes of the files of sockets.
/// It uses the kernel's inotify, so nothing is polled. A file that is removed, or that another file is renamed over, loses a link. That changes the file's
/// attributes, which inotify reports. Renaming or mounting over a directory further up causes no event.
pub(crate) struct Watch {
    /// `None` if no inotify instance is left. The files are checked periodically then.
    inotify: Option<AsyncFd<OwnedFd>>,
}

impl Watch {
    /// Watches the files at `paths` and their directories. Earlier changes are not reported, so the caller must check the files afterwards. Needs a runtime.
    pub(crate) fn new<'p>(paths: impl Iterator<Item = &'p Path>) -> Watch {
        let inotify = watch(paths).inspect_err(|error| {
            log::debug!("the session socket is looked at every {RECHECK_AFTER:?}: {error}");
        });
        Watch { inotify: inotify.ok() }
    }

    /// Waits for a change.
    pub(crate) async fn changed(&self) {
        let Some(inotify) = &self.inotify else { return tokio::time::sleep(RECHECK_AFTER).await };
        let read =
            inotify.async_io(Interest::READABLE, |inotify| Ok(rustix::io::read(inotify, &mut [0; EVENT_BYTES])?));
        if read.await.is_err() {
            // A read of inotify should not fail. If it does, the caller checks the file after this pause.
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

fn watch<'p>(paths: impl Iterator<Item = &'p Path>) -> std::io::Result<AsyncFd<OwnedFd>> {
    let inotify = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    let itself = WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF | WatchFlags::DONT_FOLLOW;
    for path in paths {
        let file = add_watch(&inotify, path, itself | WatchFlags::ATTRIB);
        let directory = add_watch(&inotify, path.parent().unwrap_or(Path::new("/")), itself | WatchFlags::ONLYDIR);
        // One of the two watches is enough: a missing file cannot be watched, and the directory may not be readable.
        file.or(directory)?;
    }
    nerite_listen::watch(inotify, Interest::READABLE)
}
