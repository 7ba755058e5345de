//! What does the system say?
//!
//! The only file of the doctor that touches the machine; how the texts of /proc are read is beside it.

mod texts;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nerite_client::{Error, SessionOptions, default_path, session_server};
use nerite_session::FoundDirectory;
use nerite_shm::{AdoptedLease, LeaseLimits, OwnedRegion, Pools};
use rustix::fs::{Access, access, statfs};

use super::facts::{Card, Client, Facts, FileSystem, Gpu, Library, Object, Probe, Process, SocketAnswer, SocketPlace};

/// Bytes that the probes take.
const PROBE_BYTES: usize = 4096;
/// Keys of a client that are looked at.
const KEYS_MAX: usize = 256;
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Directories where `libcuda.so.1` is put, besides those in the configuration of the system's loader.
const LIBRARY_DIRECTORIES: [&str; 10] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/usr/local/cuda/compat",
];

/// The processes and the socket that the operator asks about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) client_pid: Option<u32>,
    pub(super) server_pid: Option<u32>,
    pub(super) socket: Option<PathBuf>,
    pub(super) server_uid: Option<u32>,
}

/// Looks at everything.
pub(super) fn facts(wanted: &Wanted) -> Facts {
    let here = process(std::process::id()).unwrap_or_default();
    let socket = socket_place(wanted.socket.as_deref(), wanted.server_uid);
    let answering = match &socket.answer {
        SocketAnswer::Server { pid } => *pid,
        SocketAnswer::Untrusted { .. } | SocketAnswer::None { .. } => None,
    };
    let running = wanted.server_pid.or(answering).and_then(process);
    let missing = wanted.server_pid.filter(|_| running.is_none());
    let server_pid = running.as_ref().map_or(here.pid, |server| server.pid);
    let client = wanted.client_pid.map(|pid| client(pid, server_pid));
    Facts { here, running, missing, socket, lend: lend(), key: key(), client, gpu: gpu() }
}

/// Lends a page to itself, by the code that lends to clients.
fn lend() -> Probe {
    let bytes_max = 1 << 20;
    let pools = Pools::new(LeaseLimits { bytes_max, session_bytes_max: bytes_max });
    let account = pools.open();
    let adopted = account.borrow(PROBE_BYTES as u64).map_err(|error| error.to_string()).and_then(|borrowed| {
        let descriptor = borrowed.descriptor.ok_or("a first lease came without its descriptor")?;
        AdoptedLease::adopt(descriptor, borrowed.lease.byte_size()).map_err(|error| error.to_string())
    });
    adopted.map_or_else(Probe::Failed, |_| Probe::Works)
}

/// Makes a key and maps it, by the code that clients use.
fn key() -> Probe {
    let made = OwnedRegion::create(&format!("/nerite-doctor-{}", std::process::id()), PROBE_BYTES);
    made.map_or_else(|error| Probe::Failed(error.to_string()), |_| Probe::Works)
}

/// A process; `None` if it is not seen.
fn process(pid: u32) -> Option<Process> {
    let root = PathBuf::from(format!("/proc/{pid}"));
    let read = |file: &str| fs::read(root.join(file)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let link = |file: &str| Some(fs::read_link(root.join(file)).ok()?.display().to_string());
    let status = texts::status(&read("status").ok()?);
    let (memlock, nofile) = texts::limits(&read("limits").unwrap_or_default());
    Some(Process {
        pid,
        ipc_namespace: link("ns/ipc"),
        pid_namespace: link("ns/pid"),
        memlock,
        nofile,
        dev_shm: file_system(&root.join("root/dev/shm")),
        visible: read("environ").ok().map(|text| texts::visible(&text)),
        ..status
    })
}

fn file_system(path: &Path) -> Option<FileSystem> {
    let (found, space) = (fs::metadata(path).ok()?, statfs(path).ok()?);
    let block = space.f_bsize as u64;
    Some(FileSystem {
        device: found.dev(),
        inode: found.ino(),
        is_tmpfs: space.f_type as u64 == TMPFS_MAGIC,
        total_bytes: space.f_blocks.saturating_mul(block),
        free_bytes: space.f_bavail.saturating_mul(block),
    })
}

fn socket_place(given: Option<&Path>, server_uid: Option<u32>) -> SocketPlace {
    let path = given.map_or_else(default_path, Path::to_owned);
    let directory = path.parent().unwrap_or(Path::new("/"));
    let found = fs::symlink_metadata(directory).ok().map(|found| FoundDirectory {
        uid: found.uid(),
        mode: found.mode() & 0o7777,
        is_directory: found.is_dir(),
    });
    let above = directory.parent().unwrap_or(Path::new("/"));
    let can_be_made = access(above, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    let answer = answer_at(&path, server_uid);
    SocketPlace { path, is_default: given.is_none(), answer, directory: found, can_be_made }
}

/// The process that listens there. The connection is closed before anything is sent.
fn answer_at(path: &Path, server_uid: Option<u32>) -> SocketAnswer {
    if fs::metadata(path).is_ok_and(|found| !found.file_type().is_socket()) {
        return SocketAnswer::None { reason: "it is no socket".to_owned() };
    }
    let options = server_uid.map_or_else(SessionOptions::default, |uid| SessionOptions::default().server_uid(uid));
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_io().build() {
        Ok(runtime) => runtime,
        Err(error) => return SocketAnswer::None { reason: format!("cannot start a runtime: {error}") },
    };
    let _context = runtime.enter();
    match session_server(path, &options) {
        Ok(server) => SocketAnswer::Server { pid: server.pid },
        Err(Error::Untrusted { reason, cure, .. }) => SocketAnswer::Untrusted { reason, cure },
        Err(Error::Connect { reason, .. }) => SocketAnswer::None { reason },
        Err(error) => SocketAnswer::None { reason: error.to_string() },
    }
}

fn client(pid: u32, server_pid: u32) -> Client {
    let maps = fs::read(format!("/proc/{pid}/maps")).ok();
    let maps = maps.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    // A process that ends, and one of another user, has no mappings to show.
    let maps = maps.filter(|text| !text.is_empty());
    let mut keys = maps.as_deref().map(texts::keys);
    for key in keys.iter_mut().flatten().take(KEYS_MAX) {
        let path = format!("/proc/{server_pid}/root/dev/shm{}", key.name);
        key.at_server = fs::symlink_metadata(path).ok().map(|found| object(&found));
    }
    if let Some(keys) = &mut keys {
        keys.truncate(KEYS_MAX);
    }
    let maps_cuda = maps.as_deref().is_some_and(texts::maps_cuda);
    Client { pid, process: process(pid), keys, maps_cuda }
}

fn object(found: &fs::Metadata) -> Object {
    let (device, inode) = (found.dev(), found.ino());
    Object { device, inode, uid: found.uid(), gid: found.gid(), mode: found.mode() & 0o7777 }
}

fn gpu() -> Gpu {
    let driver = Path::new("/proc/driver/nvidia");
    let version = fs::read_to_string(driver.join("version")).ok();
    Gpu { driver: version.as_deref().and_then(texts::driver_version), library: library(), cards: cards(driver) }
}

fn cards(driver: &Path) -> Vec<Card> {
    let mut folders: Vec<PathBuf> = folders_of(&driver.join("gpus"));
    folders.sort();
    let mut cards = Vec::new();
    for folder in folders {
        let (mut card, minor) = texts::card(&fs::read_to_string(folder.join("information")).unwrap_or_default());
        let instances = driver.join(format!("capabilities/gpu{}/mig", minor.unwrap_or(cards.len() as u32)));
        card.mig_instances = folders_of(&instances).len();
        cards.push(card);
    }
    cards
}

fn folders_of(path: &Path) -> Vec<PathBuf> {
    fs::read_dir(path).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect()
}

fn library() -> Option<Library> {
    let variable = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = variable.split(':').filter(|one| !one.is_empty()).map(PathBuf::from).collect();
    for file in folders_of(Path::new("/etc/ld.so.conf.d")) {
        directories.extend(texts::loader_directories(&fs::read_to_string(file).unwrap_or_default()));
    }
    directories.extend(LIBRARY_DIRECTORIES.map(PathBuf::from));
    let path = directories.into_iter().map(|directory| directory.join("libcuda.so.1")).find(|path| path.exists())?;
    let whole = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
    let version = whole.file_name().and_then(|name| texts::library_version(&name.to_string_lossy()));
    Some(Library { path: whole, version })
}
