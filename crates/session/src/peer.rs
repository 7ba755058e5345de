//! Which user and process connected?

use nerite_listen::PeerCredentials;

/// A client, as the kernel identifies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    /// 0 if the process is not visible in this namespace.
    pub(crate) pid: u32,
    /// The kernel's name of its program.
    pub(crate) command: String,
}

impl Peer {
    /// Must be called when the client connects, because the process id may be reused later.
    pub(crate) fn of(credentials: PeerCredentials) -> Peer {
        let pid = credentials.pid.unwrap_or(0);
        // Files of /proc are generated in memory, so reading one hardly blocks.
        let command = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).trim_end_matches('\n').to_owned();
        Peer { uid: credentials.uid, pid, command }
    }
}
