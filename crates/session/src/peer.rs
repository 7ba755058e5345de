//! Who connected?

/// A client, as the system vouches for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    /// 0 if its process cannot be seen from here.
    pub(crate) pid: u32,
    /// What the system calls its program.
    pub(crate) command: String,
}

impl Peer {
    /// Asked when it connects: later its number may be another process's.
    pub(crate) fn of(credentials: &tokio::net::unix::UCred) -> Peer {
        let pid = credentials.pid().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
        // A file of /proc is made in memory: reading it does not block in any way that matters.
        let command = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).trim_end_matches('\n').to_owned();
        Peer { uid: credentials.uid(), pid, command }
    }
}
