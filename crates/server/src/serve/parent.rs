//! Does the process that started this server still live?
//!
//! A notebook or a test that is killed cannot stop its server. PR_SET_PDEATHSIG would watch the thread that started the server
//! and not the process, and a pipe stays open in every child that the process forked. A process descriptor has neither fault.

use std::future::pending;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::StartError;

/// The process whose end stops the server, if there is one.
pub struct Parent(Option<(u32, AsyncFd<OwnedFd>)>);

impl Parent {
    /// Watches the parent, whose number the operator gave; `None` watches nobody. A parent that has ended already is an error.
    pub fn watch(pid: Option<u32>) -> Result<Parent, StartError> {
        let Some(pid) = pid else { return Ok(Parent(None)) };
        let opened = open(pid).and_then(|descriptor| polled(descriptor).map_err(|error| error.to_string()));
        let fault = |reason| StartError(format!("failed to watch the process of --parent-pid={pid}: {reason}"));
        Ok(Parent(Some((pid, opened.map_err(fault)?))))
    }

    /// Returns the parent's number when it has ended; never where none is watched.
    pub async fn end(&self) -> u32 {
        let Some((pid, descriptor)) = &self.0 else { return pending().await };
        match descriptor.readable().await {
            Ok(_) => *pid,
            // This fails only if the runtime ends, and then the server ends as well.
            Err(_) => pending().await,
        }
    }
}

#[expect(
    deprecated,
    reason = "its replacement is unsafe; an OwnedFd names the same open descriptor for as long as it lives"
)]
fn polled(descriptor: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor, Interest::READABLE)
}

/// Opens the parent and checks afterwards that it is the parent. So another process that has the same number by then is not taken for it.
fn open(pid: u32) -> Result<OwnedFd, String> {
    let parent = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or("no process has this number")?;
    let descriptor = pidfd_open(parent, PidfdFlags::NONBLOCK).map_err(|error| error.to_string())?;
    match getppid() {
        Some(now) if now == parent => Ok(descriptor),
        now => {
            let now = now.map_or(0, |pid| pid.as_raw_nonzero().get());
            Err(format!("this server's parent is process {now}; give the number of the process that starts it"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_parent_is_watched() {
        let own = std::process::id();
        assert!(open(own).is_err_and(|text| text.contains("this server's parent is process ")));
        assert_eq!(open(0).map(drop), Err("no process has this number".to_owned()));
        assert_eq!(open(u32::MAX).map(drop), Err("no process has this number".to_owned()));
        let parent = getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
        assert!(parent.is_some_and(|pid| open(pid).is_ok()));
    }
}
