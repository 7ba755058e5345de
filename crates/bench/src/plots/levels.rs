//! How does the latency grow with the throughput?

use plotters::style::text_anchor::HPos;

use super::axis::{Axis, duration, quantity};
use super::frame::{FIRST, HEIGHT, MUTED, SECOND, WIDTH, chart, draw_label, draw_line, picture};
use crate::results::Point;

/// A line each for the median and for p99, through all levels. The number below a point is its level.
pub(crate) fn levels(points: &[Point]) -> String {
    let points: Vec<&Point> = points.iter().filter(|point| !point.client.latencies.is_empty()).collect();
    let at = |percentile: f64| {
        points.iter().map(move |point| (point.client.throughput, point.client.percentile_us(percentile)))
    };
    let throughput_max = points.iter().map(|point| point.client.throughput).fold(0.0, f64::max);
    let x = Axis::linear("throughput (inferences/s)", throughput_max, quantity);
    let y = Axis::log("latency (log scale)", at(50.0).chain(at(99.0)).map(|(_, latency)| latency), duration);
    picture((WIDTH, HEIGHT), |area| {
        let mut chart = chart(area, &[("p50", FIRST), ("p99", SECOND)], &x, &y)?;
        for (percentile, color) in [(99.0, SECOND), (50.0, FIRST)] {
            draw_line(&mut chart, &at(percentile).collect::<Vec<_>>(), color)?;
        }
        for (point, place) in std::iter::zip(&points, at(50.0)) {
            draw_label(&chart, place, (0, 15), HPos::Center, &quantity(point.level.value()), MUTED)?;
        }
        Ok(())
    })
}
