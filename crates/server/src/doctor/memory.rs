//! Can a server here lend memory, and map what clients make?

use std::path::Path;

use nerite_session::{FoundDirectory, check_directory};

use super::facts::{Facts, FileSystem, Limit, Probe, Process, SocketAnswer, SocketPlace};
use super::verdict::{Verdict, fails, holds, note};
use crate::plain::size;

/// Docker's default for a container.
const DOCKER_DEFAULT_BYTES: u64 = 64 << 20;
/// Less than this left in /dev/shm is as good as nothing.
const FREE_BYTES_MIN: u64 = 4 << 20;
/// Page-locked memory that a server of GPUs wants: Triton's pool.
const LOCKED_BYTES_WANTED: u64 = 256 << 20;
/// Descriptors that a server needs for its own files, some clients and their descriptors on the way.
const DESCRIPTORS_MIN: u64 = 1024;
/// Descriptors for all sessions, all leases, those of them on their way, and many connections.
const DESCRIPTORS_WANTED: u64 = 16_384;
/// Bytes of a Unix socket's path.
const PATH_BYTES_MAX: usize = 107;

const CAP_IPC_LOCK: u64 = 1 << 14;
const CAP_SYS_RESOURCE: u64 = 1 << 24;
const SECCOMP_FILTERS: u32 = 2;

const MORE_ROOM: &str = "`docker run --shm-size=2g`; in Kubernetes an emptyDir of medium Memory at /dev/shm; elsewhere `mount -o \
                         remount,size=2g /dev/shm`";

pub(super) fn judge(facts: &Facts) -> Vec<Verdict> {
    let server = facts.server();
    let mut verdicts: Vec<_> = facts.missing.map(missing).into_iter().collect();
    verdicts.extend([
        dev_shm(server.dev_shm.as_ref(), facts.here.dev_shm.is_some()),
        lend(&facts.lend, facts.here.seccomp),
        key(&facts.key),
    ]);
    verdicts.extend(facts.running.as_ref().and_then(|server| elsewhere(&facts.here, server)));
    verdicts.push(memlock(server, facts.gpu.driver.is_some()));
    verdicts.push(nofile(server));
    verdicts.push(socket(&facts.socket, server.uid));
    verdicts
}

fn missing(pid: u32) -> Verdict {
    let cure =
        "give its number as this process namespace counts, or none, and the one at the session socket is looked at";
    fails("server", format!("no process {pid} is seen here; all that follows is about this process"), cure)
}

fn dev_shm(found: Option<&FileSystem>, here: bool) -> Verdict {
    let check = "/dev/shm";
    let Some(FileSystem { is_tmpfs, total_bytes, free_bytes, .. }) = found else {
        if here {
            return note(check, "what the server's process has there cannot be seen", "run this as root");
        }
        return fails(check, "it is missing, and must be a tmpfs", "`mount -t tmpfs tmpfs /dev/shm`, mode 1777");
    };
    if !is_tmpfs {
        let found =
            "it is no tmpfs; objects on other file systems are refused, because an access to them can wait for a disk";
        return fails(check, found, "`mount -t tmpfs tmpfs /dev/shm`, mode 1777");
    }
    let found = format!("tmpfs of {}, {} free", size(*total_bytes), size(*free_bytes));
    if *free_bytes < FREE_BYTES_MIN {
        let cure = format!("remove objects nobody uses (`ls -lS /dev/shm`), or make it larger: {MORE_ROOM}");
        return fails(check, format!("{found}; clients need at least {}", size(FREE_BYTES_MIN)), cure);
    }
    if *total_bytes <= DOCKER_DEFAULT_BYTES {
        let found = format!("{found}: Docker's default for containers, which larger tensors do not fit in");
        return note(check, found, format!("{MORE_ROOM}; leases of sessions do not need it"));
    }
    holds(check, found)
}

fn lend(probe: &Probe, seccomp: u32) -> Verdict {
    let check = "leases";
    match probe {
        Probe::Works => holds(check, "memfd_create, its seals and a mapping work"),
        Probe::Failed(reason) if seccomp == SECCOMP_FILTERS => fails(
            check,
            format!(
                "{reason} (seccomp mode {seccomp}, with filters; wanted: memfd_create, ftruncate, fcntl F_ADD_SEALS and mmap allowed)"
            ),
            "allow these calls in the container's seccomp profile; Docker's own profile does",
        ),
        Probe::Failed(reason) => fails(
            check,
            format!("{reason} (seccomp mode {seccomp}, no filters; wanted: memfd_create with seals)"),
            "Linux 3.17 or newer, memory left in the control group, and sysctl vm.memfd_noexec below 2",
        ),
    }
}

fn key(probe: &Probe) -> Verdict {
    let check = "keys";
    match probe {
        Probe::Works => holds(check, "an object could be made, given its bytes and mapped"),
        Probe::Failed(reason) => fails(
            check,
            format!("{reason} (wanted: shm_open, 4 KiB of room and a mapping)"),
            "see that /dev/shm is mounted for writing, mode 1777, and has room",
        ),
    }
}

/// The probes test what this process may do. The server may run under other rules.
fn elsewhere(here: &Process, server: &Process) -> Option<Verdict> {
    let shared = |a: &Option<FileSystem>, b: &Option<FileSystem>| a.map(|one| one.device) == b.map(|one| one.device);
    if here.uid == server.uid && here.seccomp == server.seccomp && shared(&here.dev_shm, &server.dev_shm) {
        return None;
    }
    let (found, cure) = (
        format!(
            "leases and keys were tried as user {}, seccomp mode {}; the server is user {}, seccomp mode {}",
            here.uid, here.seccomp, server.uid, server.seccomp
        ),
        format!("run this as user {} in the server's own container for a sure answer", server.uid),
    );
    Some(note("who looks", found, cure))
}

fn memlock(server: &Process, has_gpu: bool) -> Verdict {
    let (check, Limit { soft, .. }) = ("locked memory", server.memlock);
    let Some(soft) = soft else { return holds(check, "unlimited") };
    let may_exceed = server.capabilities & CAP_IPC_LOCK != 0;
    if may_exceed || soft >= LOCKED_BYTES_WANTED {
        let how = if may_exceed { ", which does not bind a process with CAP_IPC_LOCK" } else { "" };
        return holds(check, format!("RLIMIT_MEMLOCK is {}{how}", size(soft)));
    }
    if !has_gpu {
        return holds(check, format!("RLIMIT_MEMLOCK is {}; only transfers to GPUs lock memory", size(soft)));
    }
    let found =
        format!("RLIMIT_MEMLOCK is {}, a server with GPUs locks up to {}", size(soft), size(LOCKED_BYTES_WANTED));
    note(check, found, "`ulimit -l unlimited`, `docker run --ulimit memlock=-1`, or LimitMEMLOCK=infinity in the unit")
}

fn nofile(server: &Process) -> Verdict {
    let (check, Limit { hard, .. }) = ("open files", server.nofile);
    let Some(hard) = hard else { return holds(check, "unlimited") };
    let found = format!("the hard limit, up to which the server helps itself, is {hard}");
    let cure = "`ulimit -Hn`, `docker run --ulimit nofile=65536`, or LimitNOFILE=65536 in the unit";
    let may_raise = server.capabilities & CAP_SYS_RESOURCE != 0;
    match hard {
        _ if hard >= DESCRIPTORS_WANTED || may_raise => holds(check, found),
        _ if hard >= DESCRIPTORS_MIN => {
            note(check, format!("{found}; with all sessions open it wants {DESCRIPTORS_WANTED}"), cure)
        }
        _ => fails(check, format!("{found}, and it needs {DESCRIPTORS_MIN}"), cure),
    }
}

fn socket(place: &SocketPlace, server_uid: u32) -> Verdict {
    let check = "session socket";
    let SocketPlace { path, is_default, answer, directory, can_be_made } = place;
    let (bytes, path) = (path.as_os_str().len(), path.display());
    let reason = match answer {
        SocketAnswer::Server { pid: Some(pid) } => return holds(check, format!("process {pid} listens at {path}")),
        SocketAnswer::Server { pid: None } => {
            return holds(check, format!("a server of another process namespace listens at {path}"));
        }
        SocketAnswer::Untrusted { reason, cure } => {
            return fails(check, format!("clients of this user do not use {path}: {reason}"), cure.clone());
        }
        SocketAnswer::None { reason } => reason,
    };
    let nobody = format!("no server answers at {path} ({reason})");
    if bytes > PATH_BYTES_MAX {
        let found = format!("{nobody}: the path has {bytes} bytes, at most {PATH_BYTES_MAX} can be");
        return fails(check, found, "a shorter path with --session-socket, or a shorter XDG_RUNTIME_DIR");
    }
    let at = place.path.parent().unwrap_or(Path::new("/"));
    match directory {
        Some(FoundDirectory { is_directory: false, .. }) => {
            fails(check, format!("{nobody}: its directory is none"), "remove what is there, or give --session-socket")
        }
        Some(found) if *is_default && check_directory(at, *found, server_uid).is_err() => fails(
            check,
            format!(
                "{nobody}: its directory is user {}'s, mode {:04o}; it must be user {server_uid}'s, mode 0700",
                found.uid, found.mode
            ),
            "remove that directory, or put the socket elsewhere with --session-socket",
        ),
        None if !can_be_made => fails(
            check,
            format!("{nobody}: its directory is missing and user {server_uid} cannot make it"),
            "set XDG_RUNTIME_DIR to a directory of that user, or put the socket elsewhere with --session-socket",
        ),
        _ => note(check, format!("{nobody}; a server could listen there"), "start one, or say where it is"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::verdict::troubles;
    use super::*;

    #[track_caller]
    fn check(verdict: Verdict, expect: &str) {
        let found = troubles(&[verdict]);
        assert!(found.join("").starts_with(expect) && found.is_empty() == expect.is_empty(), "{found:?}");
    }

    fn shm(is_tmpfs: bool, total_bytes: u64, free_bytes: u64) -> FileSystem {
        FileSystem { device: 1, inode: 1, is_tmpfs, total_bytes, free_bytes }
    }

    #[test]
    fn shared_memory_is_a_tmpfs_with_room() {
        check(dev_shm(Some(&shm(true, 8 << 30, 1 << 30)), true), "");
        check(dev_shm(None, true), "note /dev/shm: what the server's process has there cannot be seen");
        check(dev_shm(None, false), "FAIL /dev/shm: it is missing, and must be a tmpfs => `mount -t tmpfs");
        check(dev_shm(Some(&shm(false, 8 << 30, 1 << 30)), true), "FAIL /dev/shm: it is no tmpfs");
        check(
            dev_shm(Some(&shm(true, 64 << 20, 60 << 20)), true),
            "note /dev/shm: tmpfs of 64 MiB, 60 MiB free: Docker's default for containers, which larger tensors do not fit \
             in => `docker run --shm-size=2g`",
        );
        check(
            dev_shm(Some(&shm(true, 8 << 30, 1 << 20)), true),
            "FAIL /dev/shm: tmpfs of 8 GiB, 1 MiB free; clients need at least 4 MiB => remove objects nobody uses",
        );
    }

    #[test]
    fn a_system_that_refuses_is_distinguished_from_a_filter() {
        let failed = |why: &str| Probe::Failed(why.to_owned());
        check(lend(&Probe::Works, 2), "");
        check(
            lend(&failed("EPERM"), 2),
            "FAIL leases: EPERM (seccomp mode 2, with filters; wanted: memfd_create, ftruncate, fcntl",
        );
        check(
            lend(&failed("ENOSYS"), 0),
            "FAIL leases: ENOSYS (seccomp mode 0, no filters; wanted: memfd_create with seals)",
        );
        check(key(&Probe::Works), "");
        check(key(&failed("EACCES")), "FAIL keys: EACCES (wanted: shm_open, 4 KiB of room and a mapping) => see that");
    }

    fn limited(memlock: Option<u64>, nofile: Option<u64>, capabilities: u64) -> Process {
        let limit = |hard| Limit { soft: hard, hard };
        Process { memlock: limit(memlock), nofile: limit(nofile), capabilities, ..Process::default() }
    }

    #[test]
    fn limits_matter_where_they_bind() {
        check(memlock(&limited(None, None, 0), true), "");
        check(memlock(&limited(Some(8 << 20), None, 0), false), "");
        check(memlock(&limited(Some(8 << 20), None, CAP_IPC_LOCK), true), "");
        check(memlock(&limited(Some(256 << 20), None, 0), true), "");
        check(
            memlock(&limited(Some(8 << 20), None, 0), true),
            "note locked memory: RLIMIT_MEMLOCK is 8 MiB, a server with GPUs locks up to 256 MiB => `ulimit -l unlimited`",
        );
        check(nofile(&limited(None, None, 0)), "");
        check(nofile(&limited(None, Some(16_384), 0)), "");
        check(nofile(&limited(None, Some(256), CAP_SYS_RESOURCE)), "");
        check(
            nofile(&limited(None, Some(1024), 0)),
            "note open files: the hard limit, up to which the server helps itself",
        );
        check(
            nofile(&limited(None, Some(256), 0)),
            "FAIL open files: the hard limit, up to which the server helps itself, is 256, and it needs 1024 => `ulimit -Hn`",
        );
    }

    #[track_caller]
    fn check_socket(path: &str, directory: Option<(u32, u32, bool)>, can_be_made: bool, expect: &str) {
        let answer = SocketAnswer::None { reason: "why".to_owned() };
        let directory = directory.map(|(uid, mode, is_directory)| FoundDirectory { uid, mode, is_directory });
        let place = SocketPlace { path: PathBuf::from(path), is_default: true, answer, directory, can_be_made };
        check(socket(&place, 7), expect);
    }

    #[test]
    fn the_place_of_the_session_socket_is_the_users_own() {
        let nobody = "session socket: no server answers at /r/s (why)";
        check_socket(
            "/r/s",
            Some((7, 0o700, true)),
            false,
            &format!("note {nobody}; a server could listen there => start"),
        );
        check_socket("/r/s", None, true, "note session socket");
        check_socket(
            "/r/s",
            None,
            false,
            &format!("FAIL {nobody}: its directory is missing and user 7 cannot make it"),
        );
        let open =
            format!("FAIL {nobody}: its directory is user 7's, mode 0755; it must be user 7's, mode 0700 => remove");
        check_socket("/r/s", Some((7, 0o755, true)), true, &open);
        check_socket(
            "/r/s",
            Some((8, 0o700, true)),
            true,
            &format!("FAIL {nobody}: its directory is user 8's, mode 0700"),
        );
        check_socket("/r/s", Some((7, 0o777, false)), true, &format!("FAIL {nobody}: its directory is none"));
        let long = format!("/{}", "x".repeat(107));
        let expect =
            format!("FAIL session socket: no server answers at {long} (why): the path has 108 bytes, at most 107");
        check_socket(&long, Some((7, 0o700, true)), true, &expect);
    }

    #[test]
    fn who_listens_may_be_one_whom_clients_do_not_talk_to() {
        let judged = |answer| {
            let place =
                SocketPlace { path: "/r/s".into(), is_default: false, answer, directory: None, can_be_made: true };
            socket(&place, 7)
        };
        check(judged(SocketAnswer::Server { pid: Some(5) }), "");
        check(judged(SocketAnswer::Server { pid: None }), "");
        let (reason, cure) = ("the server there is user 8".to_owned(), "name it".to_owned());
        check(
            judged(SocketAnswer::Untrusted { reason, cure }),
            "FAIL session socket: clients of this user do not use /r/s: the server there is user 8 => name it",
        );
    }

    #[test]
    fn probes_of_another_user_are_no_sure_answer() {
        let (here, server) =
            (Process { uid: 0, ..Process::default() }, Process { uid: 7, seccomp: 2, ..Process::default() });
        assert_eq!(elsewhere(&here, &here), None);
        let expect = "note who looks: leases and keys were tried as user 0, seccomp mode 0; the server is user 7, seccomp mode 2 \
                      => run this as user 7 in the server's own container for a sure answer";
        assert_eq!(troubles(&elsewhere(&here, &server).into_iter().collect::<Vec<_>>()), [expect]);
    }
}
