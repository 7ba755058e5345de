//! How much may clients make the server hold?

use nerite_budget::Limits;
use nerite_budget::limits::LIGHT_BYTES_MAX;

use crate::flags::{BadValue, Values, bad};

/// The budgets that the operator set, and defaults for the others, for a server that may have `memory` bytes.
pub(super) fn budgets(values: &Values<'_>, memory: u64) -> Result<Limits, BadValue> {
    let budget = |flag| match values.bytes_if_given(flag)? {
        Some(bytes) if bytes < LIGHT_BYTES_MAX => {
            let reason = format!(
                "a budget of {bytes} bytes is below {LIGHT_BYTES_MAX}, up to which every connection is read; give at least \
                 --{flag}={}K",
                LIGHT_BYTES_MAX >> 10
            );
            Err(bad(flag, reason))
        }
        given => Ok(given),
    };
    let all = budget("memory-budget")?;
    let peer = budget("memory-budget-per-peer")?;
    let connection = budget("memory-budget-per-connection")?;
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
        let found = budgets(&Values(&given), 3200 << 20);
        let found = found.map(|limits| [limits.all, limits.peer, limits.connection].map(|marks| marks.high));
        assert_eq!(found.map_err(|error| error.reason), expect.map_err(str::to_owned), "{line:?}");
    }

    #[test]
    fn budgets_follow_the_memory_unless_they_are_chosen() {
        let mib = |numbers: [u64; 3]| numbers.map(|number| number << 20);
        check(&[], Ok(mib([1600, 1400, 1400])));
        check(&["--memory-budget=1677721600"], Ok(mib([1600, 1400, 1400])));
        check(&["--memory-budget=2M", "--memory-budget-per-peer=1m"], Ok([2 << 20, 1 << 20, 1 << 20]));
        check(&["--memory-budget-per-connection=1M"], Ok(mib([1600, 1400, 1])));
        check(&["--memory-budget-per-peer=3T"], Ok(mib([1600, 1600, 1600])));
        check(
            &["--memory-budget=much"],
            Err("Invalid option value. Got much; give bytes, or a number with K, M, G or T"),
        );
        check(&["--memory-budget=0"], Err("a budget of 0 bytes lets nobody ask anything"));
    }

    #[test]
    fn a_budget_that_no_connection_could_keep_to_is_refused() {
        for flag in ["memory-budget", "memory-budget-per-peer", "memory-budget-per-connection"] {
            let reason = format!(
                "a budget of 262143 bytes is below 262144, up to which every connection is read; give at least --{flag}=256K"
            );
            check(&[&format!("--{flag}=262143")], Err(&reason));
            let words = [format!("--{flag}=256K")];
            assert!(budgets(&Values(&flags::parse(&words).expect("a known flag")), 3200 << 20).is_ok());
        }
    }
}
