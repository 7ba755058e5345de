//! How are the latencies of a level distributed?

use std::ops::Range;

use plotters::prelude::{Color, Rectangle};
use plotters::style::text_anchor::HPos;

use super::axis::{Axis, Scale, duration, quantity};
use super::frame::{FIRST, INK, WIDTH, chart, draw_label, draw_upright, picture};
use crate::results::Client;

const BINS: usize = 48;
const HEIGHT: u32 = 280;

/// Bars over bins that are equally wide on a logarithmic axis, with p50 and p99.
pub(crate) fn histogram(client: &Client) -> String {
    let ends = [client.latencies.min(), client.latencies.max()];
    let x = Axis::log("latency (log scale)", ends.into_iter().map(|ns| ns as f64 / 1e3), duration);
    let counts = bins(client, &x.scale);
    let Range { start, end } = x.scale.range;
    let edge = |bin: usize| start * (end / start).powf(bin as f64 / BINS as f64);
    let y = Axis::linear("requests", counts.iter().copied().max().unwrap_or_default() as f64, quantity);
    picture((WIDTH, HEIGHT), |area| {
        let mut chart = chart(area, &[], &x, &y)?;
        let bars = counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(bin, count)| {
            Rectangle::new([(edge(bin), 0.0), (edge(bin + 1), *count as f64)], FIRST.mix(0.8).filled())
        });
        chart.draw_series(bars)?;
        for percentile in [50.0, 99.0] {
            let latency = client.percentile_us(percentile);
            if latency > 0.0 {
                draw_upright(&mut chart, latency, &y)?;
                let label = format!("p{percentile} {}", duration(latency));
                let (offset, side) = place(percentile, x.scale.share(latency));
                draw_label(&chart, (latency, y.scale.range.end), offset, side, &label, INK)?;
            }
        }
        Ok(())
    })
}

/// Where the label of a line lies: that of the median above the bars, the other one below its upper end, where bars are short.
fn place(percentile: f64, share: f64) -> ((i32, i32), HPos) {
    if percentile < 99.0 {
        ((-6, -8), HPos::Right)
    } else if share < 0.8 {
        ((6, 10), HPos::Left)
    } else {
        ((-6, 10), HPos::Right)
    }
}

/// Requests in each bin.
fn bins(client: &Client, x: &Scale) -> Vec<u64> {
    let mut counts = vec![0; BINS];
    for step in client.latencies.iter_recorded() {
        let latency_us = step.value_iterated_to() as f64 / 1e3;
        let bin = ((x.share(latency_us) * BINS as f64) as usize).min(BINS - 1);
        counts[bin] += step.count_since_last_iteration();
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn each_request_is_in_a_bin() {
        let mut client = samples::point(1, 480.0).client;
        client.latencies.record_n(480_000, 5).expect("the histogram grows");
        let x = Axis::log("", [200.0, 2000.0].into_iter(), duration);
        let counts = bins(&client, &x.scale);
        assert_eq!(counts.iter().sum::<u64>(), client.latencies.len());
        assert!(counts.iter().filter(|count| **count > 0).count() > 10, "{counts:?}");
    }
}
