//! Do this client and the server see the same memory, and may both access it?

use super::facts::{Client, Facts, FileSystem, Key, Object, Process};
use super::verdict::{Verdict, fails, holds, note};

const CAP_DAC_OVERRIDE: u64 = 1 << 1;
const SECCOMP_FILTERS: u32 = 2;
const SHARE: &str = "run both with `--ipc=host`, or the client with `--ipc=container:<server>` and the server with \
                     `--ipc=shareable`; in Kubernetes mount one emptyDir of medium Memory at /dev/shm of both; or use a session, \
                     whose leases need no key";

pub(super) fn judge(facts: &Facts) -> Vec<Verdict> {
    let Some(client) = &facts.client else { return Vec::new() };
    let server = facts.server();
    let Some(process) = &client.process else {
        return vec![fails(
            "client",
            format!("no process {} is seen here", client.pid),
            "give its number as this process namespace counts; on the host that is the one `ps` shows there",
        )];
    };
    let mut verdicts = vec![
        who(server, process),
        dev_shm(server, process),
        ipc_namespace(server, process),
        pid_namespace(server, process, client.maps_cuda),
    ];
    verdicts.extend(keys(server, client));
    verdicts.extend(seccomp(process));
    verdicts
}

fn who(server: &Process, client: &Process) -> Verdict {
    let Process { pid, uid, command, .. } = client;
    let found = format!("process {pid} ({command}), user {uid}; the server is user {}", server.uid);
    if *uid == server.uid || *uid == 0 {
        return holds("client", found);
    }
    let cure =
        format!("a server started with --session-allow-uid={uid} lets it open sessions; its keys are judged below");
    note("client", found, cure)
}

fn dev_shm(server: &Process, client: &Process) -> Verdict {
    let check = "client /dev/shm";
    let (Some(at_server), Some(at_client)) = (&server.dev_shm, &client.dev_shm) else {
        return note(check, "one of the two cannot be seen from here", "run this as root, on the host");
    };
    let identity = |at: &FileSystem| format!("device {}, inode {}", device(at.device), at.inode);
    if (at_server.device, at_server.inode) == (at_client.device, at_client.inode) {
        return holds(check, format!("is the server's ({})", identity(at_server)));
    }
    let found = format!(
        "is {}, the server's is {}: keys of one are missing for the other",
        identity(at_client),
        identity(at_server)
    );
    fails(check, found, SHARE)
}

fn ipc_namespace(server: &Process, client: &Process) -> Verdict {
    let check = "ipc namespace";
    match (&server.ipc_namespace, &client.ipc_namespace) {
        (Some(ours), Some(theirs)) if ours == theirs => holds(check, format!("both in {ours}")),
        (Some(ours), Some(theirs)) => note(
            check,
            format!("the client is in {theirs}, the server in {ours}; keys need no more than the same /dev/shm"),
            "",
        ),
        _ => note(check, "cannot be seen from here", "run this as root, on the host"),
    }
}

fn pid_namespace(server: &Process, client: &Process, uses_cuda: bool) -> Verdict {
    let check = "process namespace";
    match (&server.pid_namespace, &client.pid_namespace) {
        (Some(ours), Some(theirs)) if ours == theirs => holds(check, format!("both in {ours}")),
        (Some(ours), Some(theirs)) => {
            let found = format!("the client is in {theirs}, the server in {ours}");
            let cure = "CUDA opens handles only of processes it can see: `--pid=host` or `--pid=container:<server>`, in \
                        Kubernetes shareProcessNamespace";
            if uses_cuda {
                note(check, format!("{found}, and the client uses CUDA"), cure)
            } else {
                holds(check, format!("{found}, which only CUDA handles mind"))
            }
        }
        _ => note(check, "cannot be seen from here", "run this as root, on the host"),
    }
}

/// One verdict for all good keys together, and one for each bad key.
fn keys(server: &Process, client: &Client) -> Vec<Verdict> {
    let check = "client keys";
    let Some(keys) = &client.keys else {
        return vec![note(
            check,
            "what the client maps cannot be seen from here",
            "run this as root, or as the client's user",
        )];
    };
    if server.dev_shm.is_none() {
        return vec![note(check, "what the server finds cannot be seen from here", "run this as root")];
    }
    let uid = client.process.as_ref().map_or(0, |process| process.uid);
    let mut verdicts: Vec<Verdict> = keys.iter().filter_map(|one| key(server, uid, one)).collect();
    let good = keys.len() - verdicts.len();
    if good > 0 {
        verdicts
            .insert(0, holds(check, format!("the server may read and write {good} of {} that it maps", keys.len())));
    }
    if keys.is_empty() {
        verdicts.push(note(check, "it maps no shared memory object", "ask again when it has made its regions"));
    }
    verdicts
}

/// What is wrong with a key.
fn key(server: &Process, client_uid: u32, key: &Key) -> Option<Verdict> {
    let (check, Key { name, device: major_minor, inode, unlinked, at_server }) = ("client key", key);
    let mapped = format!("device {}, inode {inode}", device(*major_minor));
    if *unlinked {
        let found =
            format!("'{name}' is unlinked: regions that were registered go on, a new registration finds nothing");
        return Some(note(check, found, "register before the key is unlinked"));
    }
    let Some(object) = at_server else {
        let found = format!("'{name}' ({mapped}) is missing in the server's /dev/shm");
        return Some(fails(check, found, SHARE));
    };
    if (object.device, object.inode) != (*major_minor, *inode) {
        let found = format!(
            "'{name}' is {mapped} for the client, and device {}, inode {} for the server: another object",
            device(object.device),
            object.inode
        );
        return Some(fails(check, found, format!("make keys unlike those of others; or {SHARE}")));
    }
    if may_read_and_write(server, object) {
        return None;
    }
    let Object { uid, gid, mode, .. } = object;
    let found = format!(
        "'{name}' is user {uid}'s, group {gid}'s, mode {:04o}; the server is user {}, group {}, and may not read and write it \
         (the client is user {client_uid})",
        mode & 0o7777,
        server.uid,
        server.gid
    );
    let cure = "run both under one user; or give them a group and the object mode 0660 (`fchmod` after `shm_open`, whose mode \
                the umask cuts); or use a session";
    Some(fails(check, found, cure))
}

/// As the kernel decides it: the first class that the process belongs to counts.
fn may_read_and_write(process: &Process, object: &Object) -> bool {
    let Object { uid, gid, mode, .. } = object;
    let shift = if process.uid == *uid {
        6
    } else if process.gid == *gid || process.groups.contains(gid) {
        3
    } else {
        0
    };
    process.capabilities & CAP_DAC_OVERRIDE != 0 || (mode >> shift) & 0o6 == 0o6
}

fn seccomp(client: &Process) -> Option<Verdict> {
    if client.seccomp != SECCOMP_FILTERS {
        return None;
    }
    let found = "the client runs under seccomp filters (mode 2), which Docker's own profile is one of";
    Some(note("client seccomp", found, "a profile of your own must allow shm_open's openat, mmap, recvmsg and fcntl"))
}

fn device(number: u64) -> String {
    format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number))
}

#[cfg(test)]
mod tests {
    use super::super::verdict::troubles;
    use super::*;

    fn process(uid: u32, groups: &[u32], capabilities: u64) -> Process {
        let dev_shm = Some(FileSystem { device: 5, inode: 1, is_tmpfs: true, total_bytes: 0, free_bytes: 0 });
        let namespace = |name: &str| Some(name.to_owned());
        Process {
            pid: 9,
            uid,
            gid: uid,
            groups: groups.to_vec(),
            capabilities,
            dev_shm,
            ipc_namespace: namespace("ipc:[1]"),
            pid_namespace: namespace("pid:[1]"),
            ..Process::default()
        }
    }

    fn object(uid: u32, gid: u32, mode: u32) -> Object {
        Object { device: 5, inode: 42, uid, gid, mode }
    }

    #[track_caller]
    fn check_may(server: Process, object: Object, may: bool) {
        assert_eq!(may_read_and_write(&server, &object), may, "{server:?} {object:?}");
    }

    #[test]
    fn who_may_open_an_object_is_decided_as_the_kernel_does() {
        check_may(process(7, &[], 0), object(7, 7, 0o600), true);
        check_may(process(7, &[], 0), object(8, 8, 0o600), false);
        check_may(process(7, &[], 0), object(8, 8, 0o666), true);
        check_may(process(7, &[8], 0), object(8, 8, 0o660), true);
        check_may(process(7, &[8], 0), object(8, 8, 0o606), false);
        check_may(process(7, &[], 0), object(7, 7, 0o066), false);
        check_may(process(7, &[], 0), object(7, 7, 0o400), false);
        check_may(process(0, &[], 0), object(8, 8, 0o600), false);
        check_may(process(0, &[], CAP_DAC_OVERRIDE), object(8, 8, 0o600), true);
    }

    #[track_caller]
    fn check_key(unlinked: bool, at_server: Option<Object>, expect: &str) {
        let mapped = Key { name: "/x".into(), device: 5, inode: 42, unlinked, at_server };
        let found = troubles(&key(&process(7, &[], 0), 8, &mapped).into_iter().collect::<Vec<_>>()).concat();
        assert!(found.starts_with(expect) && found.is_empty() == expect.is_empty(), "{found}");
    }

    #[test]
    fn a_key_is_the_same_object_for_both_and_open_to_both() {
        check_key(false, Some(object(7, 7, 0o600)), "");
        check_key(true, None, "note client key: '/x' is unlinked");
        check_key(
            false,
            None,
            "FAIL client key: '/x' (device 0:5, inode 42) is missing in the server's /dev/shm => run both",
        );
        let other = Object { inode: 43, ..object(7, 7, 0o600) };
        check_key(
            false,
            Some(other),
            "FAIL client key: '/x' is device 0:5, inode 42 for the client, and device 0:5, inode 43 for the server: another",
        );
        check_key(
            false,
            Some(object(8, 8, 0o600)),
            "FAIL client key: '/x' is user 8's, group 8's, mode 0600; the server is user 7, group 7, and may not read and write \
             it (the client is user 8) => run both under one user",
        );
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Process), expect: &[&str]) {
        let (server, mut client) = (process(7, &[], 0), process(7, &[], 0));
        change(&mut client);
        let verdicts = [
            who(&server, &client),
            dev_shm(&server, &client),
            ipc_namespace(&server, &client),
            pid_namespace(&server, &client, true),
        ];
        let found = troubles(&[&verdicts[..], &seccomp(&client).into_iter().collect::<Vec<_>>()].concat());
        assert_eq!(found.len(), expect.len(), "{found:#?}");
        assert!(found.iter().zip(expect).all(|(found, expect)| found.starts_with(expect)), "{found:#?}");
    }

    #[test]
    fn what_differs_between_client_and_server_is_reported_with_both_values() {
        check(|_| {}, &[]);
        check(|c| c.uid = 0, &[]);
        check(|c| c.uid = 8, &["note client: process 9 (), user 8; the server is user 7 => a server started with"]);
        check(
            |c| c.dev_shm = Some(FileSystem { device: 6, ..c.dev_shm.unwrap_or_default() }),
            &["FAIL client /dev/shm: is device 0:6, inode 1, the server's is device 0:5, inode 1: keys of one"],
        );
        check(|c| c.dev_shm = None, &["note client /dev/shm: one of the two cannot be seen"]);
        check(
            |c| c.ipc_namespace = Some("ipc:[2]".into()),
            &["note ipc namespace: the client is in ipc:[2], the server in ipc:[1]"],
        );
        check(
            |c| c.pid_namespace = Some("pid:[2]".into()),
            &[
                "note process namespace: the client is in pid:[2], the server in pid:[1], and the client uses CUDA => CUDA",
            ],
        );
        check(|c| c.seccomp = 2, &["note client seccomp: the client runs under seccomp filters (mode 2)"]);
    }
}
