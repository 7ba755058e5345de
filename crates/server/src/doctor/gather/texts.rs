//! How are the texts of /proc read?

use std::path::PathBuf;

use crate::doctor::facts::{Card, Key, Limit, Process, Visible};

const DEV_SHM: &str = "/dev/shm";

/// The content of `/proc/N/status`.
pub(super) fn status(text: &str) -> Process {
    let line = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap_or("").trim();
    // Real, effective, saved, file system: the second decides.
    let effective =
        |key: &str| line(key).split_ascii_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    Process {
        command: line("Name").to_owned(),
        uid: effective("Uid"),
        gid: effective("Gid"),
        groups: line("Groups").split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect(),
        capabilities: u64::from_str_radix(line("CapEff"), 16).unwrap_or(0),
        seccomp: line("Seccomp").parse().unwrap_or(0),
        ..Process::default()
    }
}

/// Locked memory and open files, of `/proc/N/limits`.
pub(super) fn limits(text: &str) -> (Limit, Limit) {
    let limit = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or("");
        let mut numbers = line.split_ascii_whitespace().map(|word| word.parse().ok());
        Limit { soft: numbers.next().flatten(), hard: numbers.next().flatten() }
    };
    (limit("Max locked memory"), limit("Max open files"))
}

/// The variables about GPUs in `/proc/N/environ`.
pub(super) fn visible(text: &str) -> Visible {
    let value = |key: &str| {
        let of = |pair: &str| pair.strip_prefix(key)?.strip_prefix('=').map(str::to_owned);
        text.split('\0').find_map(of)
    };
    Visible { cuda: value("CUDA_VISIBLE_DEVICES"), nvidia: value("NVIDIA_VISIBLE_DEVICES") }
}

/// Shared memory objects in `/proc/N/maps`, each once. Semaphores are in the same directory and do not count.
pub(super) fn keys(text: &str) -> Vec<Key> {
    let mut keys: Vec<Key> = Vec::new();
    for line in text.lines() {
        let Some(key) = key_of(line) else { continue };
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

/// `start-end perms offset major:minor inode      path`, and behind the path ` (deleted)` where its name is gone.
fn key_of(line: &str) -> Option<Key> {
    let (head, path) = line.split_at(line.find(DEV_SHM)?);
    let mut words = head.split_ascii_whitespace().skip(3);
    let (major, minor) = words.next()?.split_once(':')?;
    let number = |word: &str| u32::from_str_radix(word, 16).ok();
    let device = rustix::fs::makedev(number(major)?, number(minor)?);
    let inode = words.next()?.parse().ok()?;
    let (name, unlinked) = match path.strip_suffix(" (deleted)") {
        Some(name) => (name, true),
        None => (path, false),
    };
    let name = name.strip_prefix(DEV_SHM)?;
    let is_key = name.len() > 1 && name.starts_with('/') && !name.starts_with("/sem.");
    is_key.then(|| Key { name: name.to_owned(), device, inode, unlinked, at_server: None })
}

/// Whether CUDA, or a device of NVIDIA's, is mapped.
pub(super) fn maps_cuda(text: &str) -> bool {
    text.lines().any(|line| line.contains("/libcuda.so") || line.contains(" /dev/nvidia"))
}

/// The kernel module's version, of `/proc/driver/nvidia/version`.
pub(super) fn driver_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.contains("Kernel Module"))?;
    line.split_ascii_whitespace().find(|word| is_version(word)).map(str::to_owned)
}

/// The version in the name of a file such as `libcuda.so.550.54.14`.
pub(super) fn library_version(name: &str) -> Option<String> {
    name.strip_prefix("libcuda.so.").filter(|rest| is_version(rest)).map(str::to_owned)
}

/// A GPU and its number, of `/proc/driver/nvidia/gpus/<bus>/information`.
pub(super) fn card(text: &str) -> (Card, Option<u32>) {
    let line = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix(':'));
    let word = |key: &str| line(key).unwrap_or("").trim().to_owned();
    let minor = line("Device Minor").and_then(|text| text.trim().parse().ok());
    (Card { model: word("Model"), uuid: word("GPU UUID"), mig_instances: 0 }, minor)
}

/// Directories named in a file of `/etc/ld.so.conf.d`.
pub(super) fn loader_directories(text: &str) -> Vec<PathBuf> {
    text.lines().map(str::trim).filter(|line| line.starts_with('/')).map(PathBuf::from).collect()
}

/// Two numbers or more, with points between: `550.54.14`.
fn is_version(word: &str) -> bool {
    let mut parts = word.split('.');
    parts.clone().count() >= 2 && parts.all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_who_it_acts_as() {
        let text = "Name:\tpython3\nUid:\t1000\t1001\t1000\t1000\nGid:\t5\t6\t7\t8\nGroups:\t20 30 \nCapEff:\t\
                    0000000000004002\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        let found = status(text);
        assert_eq!((found.command.as_str(), found.uid, found.gid, found.seccomp), ("python3", 1001, 6, 2));
        assert_eq!((found.groups, found.capabilities), (vec![20, 30], 0x4002));
    }

    #[test]
    fn limits_are_numbers_or_none() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max open files            1024                 4096                 files     \n\
                    Max locked memory         8388608              unlimited            bytes     \n";
        let expect = (Limit { soft: Some(8 << 20), hard: None }, Limit { soft: Some(1024), hard: Some(4096) });
        assert_eq!(limits(text), expect);
    }

    #[test]
    fn mapped_keys_are_found_once_with_their_identity() {
        let text = "\
7f00-7f01 rw-s 00000000 00:1b 42                         /dev/shm/in put
7f01-7f02 rw-s 00001000 00:1b 42                         /dev/shm/in put
7f02-7f03 rw-s 00000000 00:1b 43                         /dev/shm/gone (deleted)
7f03-7f04 rw-s 00000000 00:1b 44                         /dev/shm/sem.lock
7f04-7f05 rw-s 00000000 00:01 45                         /memfd:nerite-lease (deleted)
7f05-7f06 r-xp 00000000 fe:01 46                         /usr/lib/libcuda.so.550.54.14
";
        let device = rustix::fs::makedev(0, 0x1b);
        let key = |name: &str, inode, unlinked| Key { name: name.into(), device, inode, unlinked, at_server: None };
        assert_eq!(keys(text), [key("/in put", 42, false), key("/gone", 43, true)]);
        assert!(maps_cuda(text) && !maps_cuda("7f-8f r-xp 0 0:1 2 /usr/lib/libcudart.so.12\n"));
        assert_eq!(keys("nonsense /dev/shm/x\n"), []);
    }

    #[test]
    fn what_nvidia_writes_is_read() {
        let closed =
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC 12.3.0\n";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build  (dvs-builder)\n";
        assert_eq!(driver_version(closed).as_deref(), Some("535.104.05"));
        assert_eq!(driver_version(open).as_deref(), Some("550.54.14"));
        assert_eq!(library_version("libcuda.so.550.54.14").as_deref(), Some("550.54.14"));
        assert_eq!(library_version("libcuda.so.1"), None);
        let text = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 30\nGPU UUID: \t GPU-3b53\nDevice Minor: \t 2\n";
        let expect = Card { model: "NVIDIA H200".into(), uuid: "GPU-3b53".into(), mig_instances: 0 };
        assert_eq!(card(text), (expect, Some(2)));
        assert_eq!(loader_directories("# x\n/opt/lib \ninclude y\n"), [PathBuf::from("/opt/lib")]);
        let found = visible("A=1\0CUDA_VISIBLE_DEVICES=0,1\0NVIDIA_VISIBLE_DEVICES=all\0");
        assert_eq!((found.cuda.as_deref(), found.nvidia.as_deref()), (Some("0,1"), Some("all")));
    }
}
