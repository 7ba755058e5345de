//! How much may clients make the server hold?

use nerite_budget::Limits;

use crate::flags::{BadValue, Values};

/// The budgets that were chosen, the rest for a server that may have `memory` bytes.
pub(super) fn budgets(values: &Values<'_>, memory: u64) -> Result<Limits, BadValue> {
    let all = values.bytes_if_given("memory-budget")?;
    let peer = values.bytes_if_given("memory-budget-per-peer")?;
    let connection = values.bytes_if_given("memory-budget-per-connection")?;
    Ok(Limits::new(memory, all, peer, connection))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags;

    #[track_caller]
    fn check(line: &[&str], expect: Result<[u64; 3], &str>) {
        let words: Vec<String> = line.iter().map(|&word| word.to_owned()).collect();
        let given = flags::parse(&words).expect("known flags");
        let found = budgets(&Values(&given), 3200);
        let found = found.map(|limits| [limits.all.high, limits.peer.high, limits.connection.high]);
        assert_eq!(found.map_err(|error| error.reason), expect.map_err(str::to_owned), "{line:?}");
    }

    #[test]
    fn budgets_follow_the_memory_unless_they_are_chosen() {
        check(&[], Ok([1600, 1400, 1400]));
        check(&["--memory-budget=1600"], Ok([1600, 1400, 1400]));
        check(&["--memory-budget=2M", "--memory-budget-per-peer=1m"], Ok([2 << 20, 1 << 20, 1 << 20]));
        check(&["--memory-budget-per-connection=1K"], Ok([1600, 1400, 1024]));
        check(&["--memory-budget-per-peer=3T"], Ok([1600, 1600, 1600]));
        check(&["--memory-budget=much"], Err("Invalid option value. Got much"));
        check(&["--memory-budget=0"], Err("a budget of 0 bytes lets nobody ask anything"));
    }
}
