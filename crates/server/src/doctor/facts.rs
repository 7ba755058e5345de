//! Which facts are the doctor's verdicts based on?

use std::path::PathBuf;

use nerite_session::FoundDirectory;

/// All facts about the host, the server and the client.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// The doctor's own process.
    pub(super) here: Process,
    /// The server, if one runs and can be seen.
    pub(super) running: Option<Process>,
    /// The server's number, if the operator gave one and no such process is seen.
    pub(super) missing: Option<u32>,
    /// Where sessions are opened.
    pub(super) socket: SocketPlace,
    /// The result of making and mapping a lease, as the server does.
    pub(super) lend: Probe,
    /// The result of making a key and mapping it, as a client and the server do.
    pub(super) key: Probe,
    pub(super) client: Option<Client>,
    pub(super) gpu: Gpu,
}

impl Facts {
    /// The server, or this process in its place.
    pub(super) fn server(&self) -> &Process {
        self.running.as_ref().unwrap_or(&self.here)
    }
}

/// A process as /proc shows it. A value that this user may not read is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) command: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Vec<u32>,
    /// Effective capabilities.
    pub(super) capabilities: u64,
    /// The seccomp mode: 0 is off, 1 is strict, 2 is with filters.
    pub(super) seccomp: u32,
    pub(super) ipc_namespace: Option<String>,
    pub(super) pid_namespace: Option<String>,
    pub(super) memlock: Limit,
    pub(super) nofile: Limit,
    pub(super) dev_shm: Option<FileSystem>,
    pub(super) visible: Option<Visible>,
}

/// A limit on a resource; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) soft: Option<u64>,
    pub(super) hard: Option<u64>,
}

/// A mounted file system, as the process in question sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FileSystem {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) is_tmpfs: bool,
    pub(super) total_bytes: u64,
    pub(super) free_bytes: u64,
}

/// The variables that say which GPUs a process sees, as they were at its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Visible {
    pub(super) cuda: Option<String>,
    pub(super) nvidia: Option<String>,
}

/// The result of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    Works,
    Failed(String),
}

/// Where sessions are opened, and what is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SocketPlace {
    pub(super) path: PathBuf,
    /// Whether it is the default one. Its directory must be accessible only to the user.
    pub(super) is_default: bool,
    pub(super) answer: SocketAnswer,
    /// The directory it lies in.
    pub(super) directory: Option<FoundDirectory>,
    /// Whether that directory could be made.
    pub(super) can_be_made: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SocketAnswer {
    /// A server, of this process; `None` if that cannot be seen from here.
    Server { pid: Option<u32> },
    /// A process of a user whom clients of this user do not trust.
    Untrusted { reason: String, cure: String },
    /// No connection could be made. The reason is the system's error text.
    None { reason: String },
}

/// A client that the operator asks about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Client {
    pub(super) pid: u32,
    /// `None` if no such process is seen.
    pub(super) process: Option<Process>,
    /// `None` if its mappings may not be seen.
    pub(super) keys: Option<Vec<Key>>,
    /// Whether a part of CUDA is mapped by it.
    pub(super) maps_cuda: bool,
}

/// A POSIX shared memory object that a client maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// As `shm_open` takes it.
    pub(super) name: String,
    pub(super) device: u64,
    pub(super) inode: u64,
    /// Whether its name was removed.
    pub(super) unlinked: bool,
    /// What the server finds under that name.
    pub(super) at_server: Option<Object>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mode: u32,
}

/// NVIDIA's part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Gpu {
    /// The kernel module's version.
    pub(super) driver: Option<String>,
    pub(super) library: Option<Library>,
    /// Sorted by bus, as in `nvidia-smi`.
    pub(super) cards: Vec<Card>,
}

/// `libcuda.so.1`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Library {
    pub(super) path: PathBuf,
    /// From the file's own name.
    pub(super) version: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Card {
    pub(super) model: String,
    pub(super) uuid: String,
    /// Instances that MIG has split it into.
    pub(super) mig_instances: usize,
}
