//! How much processor time did some processes use?

use std::fs;

/// Clock ticks per second of /proc, fixed on Linux.
const TICKS_PER_SECOND: u64 = 100;

/// These processes and all their descendants at this moment.
pub(crate) fn with_descendants(roots: &[u32]) -> Vec<u32> {
    let listed = fs::read_dir("/proc").into_iter().flatten().flatten();
    let parents: Vec<(u32, u32)> = listed
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, *fields(pid)?.get(PARENT)? as u32))
        })
        .collect();
    let mut family = roots.to_vec();
    let mut at = 0;
    while let Some(&parent) = family.get(at) {
        let children = parents.iter().filter(|(pid, of)| *of == parent && !family.contains(pid));
        let children: Vec<u32> = children.map(|(pid, _)| *pid).collect();
        family.extend(children);
        at += 1;
    }
    family
}

/// User and system time of these processes so far, in µs. A process that has ended counts as 0.
pub(crate) fn used_us(pids: &[u32]) -> u64 {
    let ticks = |pid: &u32| fields(*pid).and_then(|all| Some(all.get(USER)? + all.get(SYSTEM)?));
    pids.iter().filter_map(ticks).sum::<u64>() * (1_000_000 / TICKS_PER_SECOND)
}

// Positions after the state, which follows the name in brackets; see proc_pid_stat(5).
const PARENT: usize = 0;
const USER: usize = 10;
const SYSTEM: usize = 11;

fn fields(pid: u32) -> Option<Vec<u64>> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The numbers after the state. The name may hold spaces and brackets, so the last bracket is what counts.
fn parse(stat: &str) -> Option<Vec<u64>> {
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_whitespace().skip(1).map(|field| field.parse().unwrap_or(0)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let stat = "7 (a) b) S 3 7 7 0 -1 4194304 100 0 0 0 12 34 0 0 20";
        let all = parse(stat).expect("fields");
        assert_eq!((all[PARENT], all[USER], all[SYSTEM]), (3, 12, 34));
    }

    #[test]
    fn this_process_is_its_own_family() {
        let me = std::process::id();
        assert!(with_descendants(&[me]).contains(&me));
        assert_eq!(used_us(&[]), 0);
    }
}
