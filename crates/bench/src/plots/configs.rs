//! Which configurations give the most throughput for their latency?

use plotters::prelude::{Circle, Color, LineSeries};
use plotters::style::text_anchor::HPos;

use super::axis::{Axis, duration, quantity};
use super::frame::{FIRST, HEIGHT, INK, MUTED, SECOND, WIDTH, chart, draw_dots, draw_label, picture};
use crate::results::ConfigPoint;

/// Throughput over the latency that was held stable. The front is a line, and the best configuration has a ring.
pub(crate) fn configs(configs: &[ConfigPoint], percentile: Option<u8>) -> String {
    let configs: Vec<&ConfigPoint> = configs.iter().filter(|one| !one.point.client.latencies.is_empty()).collect();
    let at = |config: &ConfigPoint| (config.point.client.stabilized_us(percentile), config.point.client.throughput);
    let measured: Vec<(f64, f64)> = configs.iter().copied().map(at).collect();
    let x = Axis::log("latency (log scale)", measured.iter().map(|one| one.0), duration);
    let y = Axis::linear("throughput (inferences/s)", measured.iter().map(|one| one.1).fold(0.0, f64::max), quantity);
    let of = |is_front: bool| configs.iter().copied().filter(move |one| one.is_front == is_front);
    let others: Vec<_> = of(false).map(at).collect();
    let mut front: Vec<_> = of(true).map(at).collect();
    front.sort_by(|one, other| one.0.total_cmp(&other.0));
    let legend = [("front", FIRST), ("best", SECOND), ("others", MUTED)];
    picture((WIDTH, HEIGHT), |area| {
        let mut chart = chart(area, &legend, &x, &y)?;
        chart.draw_series(LineSeries::new(front.iter().copied(), FIRST.stroke_width(2)))?;
        draw_dots(&mut chart, &others, MUTED)?;
        draw_dots(&mut chart, &front, FIRST)?;
        for best in configs.iter().copied().filter(|one| one.is_best) {
            chart.draw_series([Circle::new(at(best), 9, SECOND.stroke_width(3))])?;
        }
        for config in of(true) {
            let point = at(config);
            let (offset, side) =
                if x.scale.share(point.0) < 0.5 { ((12, 12), HPos::Left) } else { ((-12, -12), HPos::Right) };
            draw_label(&chart, point, offset, side, &short(config), INK)?;
        }
        Ok(())
    })
}

/// Rows, instances and delay.
fn short(config: &ConfigPoint) -> String {
    format!("{} × {}, {}", config.batch, config.instances, duration(config.delay_us as f64))
}
