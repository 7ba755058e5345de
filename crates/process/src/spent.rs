//! How long did the phases of an execution in another process take?
//!
//! The child reports durations, because its clock has another origin. The server places them so that the last one ends when the answer arrives. So
//! the time that the packets take counts as input time.

use nerite_backend::Times;

use crate::packets::Execution;

/// The executions of a batch, in order: rows and times of each.
pub(crate) type Spent = Vec<(u64, Times)>;

/// The executions in an answer. `times` began with the batch, and its `infer_end` is the arrival of the answer.
pub(crate) fn spent_of(executions: impl Iterator<Item = Execution>, times: &Times) -> Spent {
    spread(&executions.collect::<Vec<_>>(), times)
}

fn spread(executions: &[Execution], times: &Times) -> Spent {
    let window = times.infer_end.saturating_sub(times.start);
    let all = |one: &Execution| u128::from(one.input_ns) + u128::from(one.infer_ns) + u128::from(one.output_ns);
    let total: u128 = executions.iter().map(all).sum();
    // Durations that exceed the whole time are limited to it.
    let fits = total <= u128::from(window);
    let fit = |ns: u64| if fits { ns } else { (u128::from(ns) * u128::from(window) / total) as u64 };
    let mut at = times.start;
    let mut lead = if fits { window - total as u64 } else { 0 };
    let each = executions.iter().map(|one| {
        let start = at;
        let input_end = start + std::mem::take(&mut lead) + fit(one.input_ns);
        let infer_end = input_end + fit(one.infer_ns);
        at = infer_end + fit(one.output_ns);
        (one.rows, Times { start, input_end, infer_end, end: at })
    });
    each.collect()
}

/// The times of a request of that batch, over all its executions.
pub(crate) fn whole(spent: &Spent, times: Times) -> Times {
    let (Some((_, first)), Some((_, last))) = (spent.first(), spent.last()) else { return times };
    Times { start: first.start, input_end: first.input_end, infer_end: last.infer_end, end: times.end.max(last.end) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::packets::Said;

    fn read(executions: &str, times: &Times) -> Option<Spent> {
        let said = Said::read(format!(r#"{{"executions":{executions}}}"#).as_bytes()).unwrap();
        said.executions().map(|executions| spent_of(executions, times))
    }

    #[track_caller]
    fn check(executions: &str, expected: &[(u64, [u64; 4])]) {
        let times = Times { start: 100, input_end: 110, infer_end: 200, end: 200 };
        let spent = read(executions, &times).unwrap();
        let found: Vec<_> = spent.iter().map(|(rows, t)| (*rows, [t.start, t.input_end, t.infer_end, t.end])).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn the_time_of_the_packets_counts_as_input_and_no_time_is_after_the_answer() {
        check("[]", &[]);
        check("[[3,5,60,5]]", &[(3, [100, 135, 195, 200])]);
        check("[[1,0,20,0],[2,10,30,0]]", &[(1, [100, 140, 160, 160]), (2, [160, 170, 200, 200])]);
        check("[[1,100,200,100]]", &[(1, [100, 125, 175, 200])]);
        check(r#"["nonsense",[1]]"#, &[]);
        assert_eq!(read("7", &Times::default()), None);
        assert!(Said::read(b"{}").unwrap().executions().is_none());
    }

    #[test]
    fn a_request_spans_the_executions_of_its_batch() {
        let times = Times { start: 100, input_end: 110, infer_end: 200, end: 210 };
        let spent = read("[[1,0,20,0],[2,10,30,0]]", &times).unwrap();
        assert_eq!(whole(&spent, times), Times { start: 100, input_end: 140, infer_end: 200, end: 210 });
        assert_eq!(whole(&Vec::new(), times), times);
    }
}
