//! Has this machine enough disk and memory for a run of the tests?

use std::path::Path;

/// The least free disk space: the build directory and what tests write.
const DISK_BYTES_MIN: u64 = 15 << 30;
/// The least available memory: linkers, and tests that fill memory up to limits of their own.
const MEMORY_BYTES_MIN: u64 = 6 << 30;

/// Err with what is short.
pub fn check(root: &Path) -> Result<(), String> {
    let disk = rustix::fs::statvfs(root).map_err(|cause| format!("{}: {cause}", root.display()))?;
    let memory = std::fs::read_to_string("/proc/meminfo").map_err(|cause| format!("/proc/meminfo: {cause}"))?;
    judge(disk.f_bavail.saturating_mul(disk.f_frsize), available(&memory))
}

fn judge(disk_bytes: u64, memory_bytes: u64) -> Result<(), String> {
    for (what, has, needs) in [("disk", disk_bytes, DISK_BYTES_MIN), ("memory", memory_bytes, MEMORY_BYTES_MIN)] {
        if has < needs {
            let [has, needs] = [has, needs].map(|bytes| bytes >> 30);
            return Err(format!(
                "too small a machine: {has} GiB of {what} are free, the tests need {needs} GiB; free some and run again"
            ));
        }
    }
    Ok(())
}

/// The available memory in bytes, according to `/proc/meminfo`.
fn available(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map_or(0, |kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_is_named_with_both_numbers() {
        assert_eq!(judge(DISK_BYTES_MIN, MEMORY_BYTES_MIN), Ok(()));
        let short = judge(3 << 30, MEMORY_BYTES_MIN).expect_err("short");
        assert_eq!(
            short,
            "too small a machine: 3 GiB of disk are free, the tests need 15 GiB; free some and run again"
        );
        assert!(judge(DISK_BYTES_MIN, 0).is_err_and(|short| short.contains("0 GiB of memory")));
    }

    #[test]
    fn available_memory_is_read_from_the_kernels_table() {
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:    2048 kB\n"), 2 << 20);
        assert_eq!(available(""), 0);
    }
}
