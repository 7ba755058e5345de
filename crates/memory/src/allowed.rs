//! How much memory may this process have, and how much is in use?
//!
//! The process may use the memory of the host, or less if its control group has a lower limit. That limit is the lowest one on the path from the process's
//! group up to the root of the mounted hierarchy: `memory.max` and `memory.high` of version 2 (systemd's `MemoryMax` and `MemoryHigh` are these files),
//! `memory.limit_in_bytes` of version 1.

use std::path::{Path, PathBuf};

/// Bytes of the host's memory.
pub fn host_bytes() -> u64 {
    if cfg!(miri) {
        // Miri does not know the host's memory.
        return 1 << 34;
    }
    // SAFETY: asks for a number; no pointers are involved.
    let value_of = |what| u64::try_from(unsafe { libc::sysconf(what) }).unwrap_or_default();
    value_of(libc::_SC_PHYS_PAGES).saturating_mul(value_of(libc::_SC_PAGESIZE))
}

/// Bytes of memory that this process may use: the host's, or the limit of its control group. Reads files.
pub fn allowed_bytes() -> u64 {
    group().and_then(|group| group.limit_bytes).map_or(host_bytes(), |limit| limit.min(host_bytes()))
}

/// As [`allowed_bytes`], but at most two thirds of what the limit on the address space (`ulimit -v`) leaves free now. Stacks of threads and memory that
/// is reserved but not used count against that limit as well, and need the rest.
pub fn allocatable_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_ascii_whitespace().next().and_then(|pages| pages.parse::<u64>().ok()).unwrap_or_default();
    let left = address_space_limit().map(|limit| limit.saturating_sub(pages * page_bytes()) / 3 * 2);
    left.map_or(allowed_bytes(), |left| left.min(allowed_bytes()))
}

/// The memory limit of this process's control group, and what the group uses. `None` if no group has a limit.
pub fn group() -> Option<Group> {
    let found = Group::find(Path::new("/proc/self"), Path::new("/"));
    (found.limit_bytes.is_some()).then_some(found)
}

/// The limit on the process's address space, in bytes. `None` if there is none.
pub(crate) fn address_space_limit() -> Option<u64> {
    if cfg!(miri) {
        return None;
    }
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: writes to the place for one limit that it is given.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) } == 0;
    (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

fn page_bytes() -> u64 {
    // SAFETY: asks for a number; no pointers are involved.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or_default()
}

/// The memory limits of a process's control groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The lowest limit, in bytes. `None` if there is none.
    pub limit_bytes: Option<u64>,
    /// Bytes that the group with that limit uses, without the file cache that the kernel drops first.
    pub used_bytes: u64,
}

impl Group {
    /// Reads the groups of the process at `process` (`/proc/<pid>`). Directories of groups are searched below `root`.
    fn find(process: &Path, root: &Path) -> Group {
        let read = |name| std::fs::read_to_string(process.join(name)).unwrap_or_default();
        let hierarchies = hierarchies(&read("cgroup"), &read("mountinfo"));
        let all = hierarchies.iter().flat_map(|(version, mount, own)| {
            let (mount, own) = (below(root, mount), below(root, own));
            let levels: Vec<_> = own.ancestors().take_while(|level| level.starts_with(&mount)).collect();
            levels.into_iter().filter_map(|level| version.read(level)).collect::<Vec<_>>()
        });
        // A container may have its limits at the usual paths although no hierarchy is mounted there.
        let shown = SHOWN_AT.iter().filter_map(|(version, at)| version.read(&below(root, Path::new(at))));
        all.chain(shown).min_by_key(|group| group.limit_bytes).unwrap_or_default()
    }
}

/// The usual path of a container's group.
const SHOWN_AT: [(Version, &str); 2] = [(Version::Two, "/sys/fs/cgroup"), (Version::One, "/sys/fs/cgroup/memory")];

/// `path`, as if `root` were the root of the file system.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// A version of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    /// The limits that a group's files name.
    fn limits(self) -> &'static [&'static str] {
        match self {
            Version::One => &["memory.limit_in_bytes"],
            Version::Two => &["memory.max", "memory.high"],
        }
    }

    /// The file with the memory that a group uses, and the line of `memory.stat` with the file cache that is dropped first.
    fn usage(self) -> (&'static str, &'static str) {
        match self {
            Version::One => ("memory.usage_in_bytes", "total_inactive_file"),
            Version::Two => ("memory.current", "inactive_file"),
        }
    }

    /// The group at `directory`; `None` if it has no limit.
    fn read(self, directory: &Path) -> Option<Group> {
        let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap_or_default();
        let number = |text: String| text.trim().parse::<u64>().ok();
        // In version 1, the largest number of pages means that there is no limit.
        let limits = self.limits().iter().filter_map(|name| number(read(name))).filter(|limit| *limit < NO_LIMIT_MIN);
        let limit = limits.min()?;
        let (current, inactive) = self.usage();
        let stat = read("memory.stat");
        let inactive = stat.lines().find_map(|line| line.strip_prefix(inactive)?.trim().parse::<u64>().ok());
        let used_bytes = number(read(current)).unwrap_or_default().saturating_sub(inactive.unwrap_or_default());
        Some(Group { limit_bytes: Some(limit), used_bytes })
    }
}

/// A limit of this many bytes or more counts as none.
const NO_LIMIT_MIN: u64 = 1 << 60;

/// The hierarchies that count memory: where each is mounted, and the process's own directory in it.
fn hierarchies(cgroup: &str, mountinfo: &str) -> Vec<(Version, PathBuf, PathBuf)> {
    let mounts = mountinfo.lines().filter_map(Mount::read);
    let found = mounts.filter_map(|mount| {
        let own = cgroup.lines().find_map(|line| own_path(line, mount.version))?;
        // In a cgroup namespace, the root of the mount may not contain the process's path. The mount then shows the process's own group.
        let inner = Path::new(own).strip_prefix(mount.root).unwrap_or(Path::new(""));
        let climbs = inner.components().any(|part| part == std::path::Component::ParentDir);
        let own = if climbs { mount.at.clone() } else { mount.at.join(inner) };
        Some((mount.version, mount.at, own))
    });
    found.collect()
}

/// The path in a line of `/proc/<pid>/cgroup`: `0::/path`, or `4:cpu,memory:/path` in version 1.
fn own_path(line: &str, version: Version) -> Option<&str> {
    let mut fields = line.splitn(3, ':');
    let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let fits = match version {
        Version::One => controllers.split(',').any(|controller| controller == "memory"),
        Version::Two => number == "0" && controllers.is_empty(),
    };
    fits.then_some(path)
}

/// A mounted hierarchy.
struct Mount<'t> {
    version: Version,
    /// The group that is the root of this view of the hierarchy.
    root: &'t str,
    at: PathBuf,
}

impl Mount<'_> {
    /// Reads `id parent device root at options … - type source options` of `/proc/<pid>/mountinfo`.
    fn read(line: &str) -> Option<Mount<'_>> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, at) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.nth(1).unwrap_or_default());
        let version = match kind {
            "cgroup2" => Version::Two,
            "cgroup" if options.split(',').any(|option| option == "memory") => Version::One,
            _ => return None,
        };
        Some(Mount { version, root, at: PathBuf::from(at.replace("\\040", " ")) })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const ONE: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
                       41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    const TWO: &str =
        "25 1 0:22 / /sys rw - sysfs sysfs rw\n30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";

    /// Checks the limit and the used bytes of a process with this content of `/proc/self/cgroup` and `mountinfo`, and with these files below `/sys/fs/cgroup`.
    #[track_caller]
    fn check(cgroup: &str, mountinfo: &str, files: &[(&str, &str)], expect: (Option<u64>, u64)) {
        let root = std::env::temp_dir().join(format!(
            "nerite-groups-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let _ = std::fs::remove_dir_all(&root);
        let process = root.join("proc/self");
        std::fs::create_dir_all(&process).unwrap();
        std::fs::write(process.join("cgroup"), cgroup).unwrap();
        std::fs::write(process.join("mountinfo"), mountinfo).unwrap();
        for (path, text) in files {
            let path = root.join("sys/fs/cgroup").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let found = Group::find(&process, &root);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!((found.limit_bytes, found.used_bytes), expect);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no files")]
    fn the_tightest_limit_of_the_own_path_counts() {
        // systemd sets MemoryMax and MemoryHigh in the group of the service. The limit of a slice above it may be lower.
        let own = "0::/system.slice/nerite.service\n";
        check(own, TWO, &[("system.slice/nerite.service/memory.max", "max\n")], (None, 0));
        check(own, TWO, &[("system.slice/nerite.service/memory.max", "500\n")], (Some(500), 0));
        check(own, TWO, &[("memory.max", "900"), ("system.slice/nerite.service/memory.max", "500")], (Some(500), 0));
        check(
            own,
            TWO,
            &[("system.slice/memory.max", "300"), ("system.slice/nerite.service/memory.max", "500")],
            (Some(300), 0),
        );
        check(
            own,
            TWO,
            &[("system.slice/nerite.service/memory.high", "400"), ("system.slice/nerite.service/memory.max", "500")],
            (Some(400), 0),
        );
        // A sibling's limit is not ours.
        check(own, TWO, &[("system.slice/other.service/memory.max", "1")], (None, 0));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no files")]
    fn what_is_shown_at_the_usual_places_counts_without_a_hierarchy() {
        check("", TWO, &[("memory.max", "5")], (Some(5), 0));
        check("0::/a\n", "", &[("memory.max", "5")], (Some(5), 0));
        check("0::/a\n", "", &[("memory/memory.limit_in_bytes", "6")], (Some(6), 0));
        check("0::/a\n", "", &[("a/memory.max", "5")], (None, 0));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no files")]
    fn a_container_sees_its_own_group_as_the_root() {
        check("0::/\n", TWO, &[("memory.max", "700\n")], (Some(700), 0));
        // A container without a cgroup namespace of its own, whose group is mounted at the root.
        let mounted = "30 25 0:26 /docker/ab12 /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        check("0::/docker/ab12\n", mounted, &[("memory.max", "700")], (Some(700), 0));
        check(
            "0::/docker/ab12/inner\n",
            mounted,
            &[("inner/memory.max", "600"), ("memory.max", "700")],
            (Some(600), 0),
        );
        // The process was moved out of the namespace's root.
        check("0::/../other\n", TWO, &[("memory.max", "700")], (Some(700), 0));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no files")]
    fn version_one_is_read_along_its_path_too() {
        let own = "4:cpu,memory:/a/b\n0::/\n";
        let none = "9223372036854771712\n";
        check(own, ONE, &[("memory/a/b/memory.limit_in_bytes", none)], (None, 0));
        check(
            own,
            ONE,
            &[("memory/a/b/memory.limit_in_bytes", "80"), ("memory/a/memory.limit_in_bytes", "70")],
            (Some(70), 0),
        );
        check(own, ONE, &[("memory/a/b/memory.limit_in_bytes", "80"), ("unified/memory.max", "60")], (Some(60), 0));
        check("4:memory:/docker/x\n", ONE, &[("memory/memory.limit_in_bytes", "50")], (Some(50), 0));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no files")]
    fn cached_files_that_go_first_are_not_used_memory() {
        let files = [
            ("memory.max", "700"),
            ("memory.current", "500\n"),
            ("memory.stat", "anon 1\ninactive_file 120\nactive_file 9\n"),
        ];
        check("0::/\n", TWO, &files, (Some(700), 380));
        let files = [
            ("memory/memory.limit_in_bytes", "700"),
            ("memory/memory.usage_in_bytes", "500"),
            ("memory/memory.stat", "inactive_file 7\ntotal_inactive_file 100\n"),
        ];
        check("3:memory:/\n", ONE, &files, (Some(700), 400));
    }

    #[test]
    fn the_host_has_memory() {
        assert!(host_bytes() > 1 << 20);
        assert!((1 << 20..=host_bytes()).contains(&allowed_bytes()));
        assert!(allocatable_bytes() <= allowed_bytes());
    }
}
