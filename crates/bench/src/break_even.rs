//! From which size of a tensor on is shared memory faster?

use crate::results::SizePoint;

/// The size in bytes where the median latencies cross, with straight lines between the points on two logarithmic axes. `None`: one
/// kind of memory is faster at each size, or the message is at the largest one. Of several crossings the last one counts.
pub(crate) fn break_even(points: &[SizePoint]) -> Option<f64> {
    points.last().and_then(advantage).filter(|largest| *largest > 0.0)?;
    points.windows(2).rev().find_map(|pair| {
        let (before, after) = (advantage(&pair[0])?, advantage(&pair[1])?);
        if before > 0.0 {
            return None;
        }
        let (low, high) = ((pair[0].bytes as f64).ln(), (pair[1].bytes as f64).ln());
        Some((low + (high - low) * before / (before - after)).exp())
    })
}

/// How much faster shared memory is, as a logarithm.
fn advantage(point: &SizePoint) -> Option<f64> {
    let (inline, shared) = (point.inline.client.percentile_us(50.0), point.shared.client.percentile_us(50.0));
    (inline > 0.0 && shared > 0.0).then(|| (inline / shared).ln())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[track_caller]
    fn check(latencies: &[(u64, f64, f64)], expect: Option<f64>) {
        let points: Vec<SizePoint> = latencies
            .iter()
            .map(|&(bytes, inline, shared)| SizePoint {
                bytes,
                inline: samples::point(1, inline),
                shared: samples::point(1, shared),
            })
            .collect();
        let found = break_even(&points);
        match (found, expect) {
            (Some(found), Some(expect)) => assert!((found / expect - 1.0).abs() < 0.01, "{found}, not {expect}"),
            _ => assert_eq!(found, expect),
        }
    }

    #[test]
    fn lines_cross_between_two_sizes() {
        // Both lines of a logarithmic picture are symmetric around 2048 bytes.
        check(&[(1024, 100.0, 200.0), (4096, 400.0, 200.0)], Some(2048.0));
        check(&[(1024, 100.0, 100.0), (4096, 400.0, 200.0)], Some(1024.0));
        check(&[(1024, 100.0, 110.0), (4096, 200.0, 120.0), (16384, 800.0, 130.0)], Some(1273.4));
    }

    #[test]
    fn one_kind_of_memory_is_faster_at_each_size() {
        check(&[(1024, 100.0, 200.0), (4096, 150.0, 200.0)], None);
        check(&[(1024, 300.0, 200.0), (4096, 350.0, 200.0)], None);
        check(&[(1024, 300.0, 200.0)], None);
        check(&[], None);
    }

    #[test]
    fn of_several_crossings_the_last_one_counts() {
        check(&[(16, 100.0, 110.0), (64, 110.0, 100.0), (256, 100.0, 110.0), (1024, 110.0, 100.0)], Some(512.0));
        check(&[(16, 200.0, 100.0), (64, 100.0, 200.0)], None);
        check(&[(16, 100.0, 200.0), (64, 200.0, 100.0), (256, 100.0, 200.0)], None);
    }
}
