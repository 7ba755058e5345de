//! Which configurations are not worse than another in both throughput and latency?

/// Whether each of the points, as throughput and latency, is on the front: no other has at least its throughput and at most its
/// latency, and one of both better.
pub(crate) fn pareto_front(points: &[(f64, f64)]) -> Vec<bool> {
    let dominates = |one: &(f64, f64), other: &(f64, f64)| one.0 >= other.0 && one.1 <= other.1 && one != other;
    points.iter().map(|point| !points.iter().any(|other| dominates(other, point))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(points: &[(f64, f64)], expect: &[bool]) {
        assert_eq!(pareto_front(points), expect);
    }

    #[test]
    fn a_point_is_on_the_front_if_no_other_is_better() {
        check(&[], &[]);
        check(&[(100.0, 1.0)], &[true]);
        check(&[(100.0, 1.0), (200.0, 2.0), (150.0, 3.0)], &[true, true, false]);
        check(&[(100.0, 1.0), (100.0, 2.0)], &[true, false]);
        check(&[(100.0, 1.0), (200.0, 1.0)], &[false, true]);
        check(&[(100.0, 1.0), (100.0, 1.0)], &[true, true]);
    }
}
