//! Are groups made where they may be, and nowhere else?
//!
//! Directories stand in for the kernel's groups: the same names are made and the same words written.

#![allow(clippy::unwrap_used)]

use super::*;

const MOUNTED: &str = "25 1 0:22 / /sys rw - sysfs sysfs rw\n30 25 0:26 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

#[test]
fn the_group_of_a_process_is_read() {
    let path = |own: &str| Some(GroupPath { top: "/sys/fs/cgroup".into(), own: own.to_owned() });
    assert_eq!(GroupPath::read("0::/system.slice/nerite.service\n", MOUNTED), path("/system.slice/nerite.service"));
    assert_eq!(GroupPath::read("4:memory:/a\n0::/\n", MOUNTED), path("/"));
    assert_eq!(GroupPath::read("4:memory:/a\n", MOUNTED), None);
    assert_eq!(GroupPath::read("0::/../elsewhere\n", MOUNTED), None);
    assert_eq!(GroupPath::read("0::/\n", "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"), None);
}

/// A hierarchy of control groups, with these groups that have both controllers, of which those named are enabled for the groups below.
fn control_groups(groups: &[(&str, &str)]) -> tempfile::TempDir {
    let top = tempfile::tempdir().unwrap();
    for (group, enabled) in groups {
        let group = top.path().join(group.trim_start_matches('/'));
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("cgroup.subtree_control"), enabled).unwrap();
        fs::write(group.join("cgroup.controllers"), "cpu memory pids").unwrap();
        fs::write(group.join("cgroup.procs"), "").unwrap();
    }
    top
}

/// The group that a process of `own` divides, and what it wrote into its `cgroup.subtree_control`.
fn divided(groups: &[(&str, &str)], own: &str, delegated: &str) -> Result<(String, String), String> {
    let top = control_groups(groups);
    let path = GroupPath { top: top.path().to_owned(), own: own.to_owned() };
    let marked = top.path().join(delegated.trim_start_matches('/'));
    let found = path.divide(&["pids", "memory"], |group| !delegated.is_empty() && group == marked);
    let found = found.map_err(|error| error.to_string())?;
    let enabled = fs::read_to_string(found.join("cgroup.subtree_control")).unwrap();
    Ok((found.strip_prefix(top.path()).unwrap().display().to_string(), enabled))
}

#[test]
fn only_what_is_delegated_is_divided() {
    let made = |path: &str| Ok((path.to_owned(), "+pids +memory".to_owned()));
    let service =
        [("/", "memory pids"), ("/system.slice", "memory pids"), ("/system.slice/a", ""), ("/system.slice/a/sub", "")];
    assert_eq!(divided(&service, "/system.slice/a", "/system.slice/a"), made("system.slice/a"));
    assert_eq!(divided(&service, "/system.slice/a/sub", "/system.slice/a"), made("system.slice/a"));
    // Root may write into the slice of a service that has no Delegate=.
    let refused = divided(&service, "/system.slice/a", "").unwrap_err();
    assert!(refused.contains("'/system.slice/a' is not its own to divide; give its service Delegate=yes"), "{refused}");
    let user = [("/", ""), ("/user@7.service", "memory pids"), ("/user@7.service/a.service", "")];
    assert!(divided(&user, "/user@7.service/a.service", "/user@7.service").is_err());
    // Containers.
    assert_eq!(divided(&[("/", "")], "/", ""), made(""));
    let prepared = [("/", "cpu memory pids"), ("/server", "")];
    assert_eq!(divided(&prepared, "/server", ""), Ok((String::new(), "cpu memory pids".to_owned())));
    assert!(divided(&[("/", "pids"), ("/server", "")], "/server", "").is_err());
}

#[test]
fn a_controller_that_is_not_there_is_named() {
    let top = control_groups(&[("/", "")]);
    fs::write(top.path().join("cgroup.controllers"), "hugetlb pids").unwrap();
    let path = GroupPath { top: top.path().to_owned(), own: "/".to_owned() };
    let refused = path.divide(&["pids", "memory"], |_| false).unwrap_err().to_string();
    assert!(refused.ends_with("has no controller 'memory' for groups below it"), "{refused}");
    assert_eq!(path.divide(&["pids"], |_| false).unwrap(), top.path());
}

#[test]
fn a_process_joins_a_group_with_the_limits_of_its_policy() {
    let base = tempfile::tempdir().unwrap();
    let policy = |group_memory_bytes, processes| Policy {
        group: Some(base.path().to_owned()),
        group_memory_bytes,
        processes,
        ..Policy::default()
    };
    let group = base.path().join(format!("{PREFIX}{}", std::process::id()));
    let content = |name: &str| fs::read_to_string(group.join(name)).ok();
    assert!(!join(&Policy::default()).unwrap());
    assert!(join(&policy(Some(5), Processes::AtMost(7))).unwrap());
    let words = ["pids.max", "memory.max", "memory.swap.max", "memory.oom.group", "cgroup.procs"].map(content);
    assert_eq!(words, ["7", "5", "0", "1", "0"].map(|word| Some(word.to_owned())));
    assert!(join(&policy(Some(5), Processes::Any)).is_err(), "the group is not empty");
    fs::remove_dir_all(&group).unwrap();
    fs::create_dir(&group).unwrap();
    assert!(join(&policy(None, Processes::AtMost(3))).unwrap());
    assert_eq!((content("pids.max"), content("memory.max")), (Some("3".to_owned()), None));
    fs::remove_dir_all(&group).unwrap();
    fs::create_dir(&group).unwrap();
    // No process has that number: it is above the kernel's highest.
    let ended = base.path().join(format!("{PREFIX}4194305"));
    fs::create_dir(&ended).unwrap();
    sweep(base.path());
    assert!(group.exists() && !ended.exists());
}
