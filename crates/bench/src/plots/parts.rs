//! Where did the time of a request go?

use plotters::prelude::{Color, RGBColor, Rectangle};

use super::axis::{Axis, Scale, duration};
use super::frame::{LEGEND_HEIGHT, WIDTH, X_AXIS_HEIGHT, chart, picture};
use crate::results::{Point, Server};

const ROW_HEIGHT: u32 = 34;
/// The share of a row that its bar fills.
const BAR: f64 = 0.62;

/// The parts in the order of a request's way, with their colours: blue on the client, green in the model.
const PARTS: [(&str, RGBColor); 7] = [
    ("client send", RGBColor(0x8F, 0xB5, 0xF2)),
    ("network, other", RGBColor(0xA9, 0xAF, 0xBB)),
    ("queue", RGBColor(0xE2, 0xA6, 0x2E)),
    ("input", RGBColor(0x86, 0xCF, 0xB4)),
    ("infer", RGBColor(0x12, 0x8C, 0x6C)),
    ("output", RGBColor(0x4F, 0xB3, 0x90)),
    ("client receive", RGBColor(0x2F, 0x6F, 0xDE)),
];

/// A bar for each level, from the average times.
pub(crate) fn parts(points: &[Point]) -> String {
    let rows = points.len() as f64;
    let labels: Vec<String> = points.iter().rev().map(|point| super::quantity(point.level.value())).collect();
    let longest = points.iter().map(|point| times_us(point).iter().sum()).fold(0.0, f64::max);
    let x = Axis::linear("average time of a request", longest, duration);
    let marks = (0..points.len()).map(|row| row as f64 + 0.5).collect();
    let y = Axis {
        name: "level",
        scale: Scale { range: 0.0..rows.max(1.0), marks, is_log: false },
        label: Box::new(move |mark| labels.get(mark as usize).cloned().unwrap_or_default()),
    };
    let height = LEGEND_HEIGHT + X_AXIS_HEIGHT + ROW_HEIGHT * points.len().max(2) as u32;
    picture((WIDTH, height), |area| {
        let mut chart = chart(area, &PARTS, &x, &y)?;
        for (row, point) in points.iter().rev().enumerate() {
            let (bottom, mut left) = (row as f64 + (1.0 - BAR) / 2.0, 0.0);
            for ((_, color), time) in PARTS.into_iter().zip(times_us(point)).filter(|(_, time)| *time > 0.0) {
                let bar = Rectangle::new([(left, bottom), (left + time, bottom + BAR)], color.filled());
                chart.draw_series([bar])?;
                left += time;
            }
        }
        Ok(())
    })
}

/// The averages in the order of [`PARTS`]. What nobody accounts for is the network.
fn times_us(point: &Point) -> [f64; PARTS.len()] {
    let client = &point.client;
    let [queue, input, infer, output] = point.server.as_ref().map(server_us).unwrap_or_default();
    let rest = client.mean_us - client.send_us - client.receive_us - (queue + input + infer + output);
    [client.send_us, rest.max(0.0), queue, input, infer, output, client.receive_us]
}

/// Of all requests: those that the response cache answers need no model.
fn server_us(server: &Server) -> [f64; 4] {
    let computed = server.cache.map_or(1.0, |cache| cache.misses as f64 / (cache.hits + cache.misses).max(1) as f64);
    [server.queue_us, server.input_us * computed, server.infer_us * computed, server.output_us * computed]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Cache;
    use crate::samples;

    #[track_caller]
    fn check(point: &Point, expect: [i64; PARTS.len()]) {
        assert_eq!(times_us(point).map(|time| time.round() as i64), expect);
    }

    fn point() -> Point {
        let mut point = samples::point(1, 100.0);
        let client = &mut point.client;
        (client.mean_us, client.send_us, client.receive_us) = (100.0, 10.0, 20.0);
        let server = point.server.as_mut().expect("samples have a server");
        (server.queue_us, server.input_us, server.infer_us, server.output_us) = (5.0, 10.0, 20.0, 5.0);
        point
    }

    #[test]
    fn what_nobody_accounts_for_is_the_network() {
        check(&point(), [10, 30, 5, 10, 20, 5, 20]);
        check(&Point { server: None, ..point() }, [10, 70, 0, 0, 0, 0, 20]);
    }

    #[test]
    fn a_server_that_accounts_for_more_leaves_none() {
        let mut point = point();
        point.client.mean_us = 60.0;
        check(&point, [10, 0, 5, 10, 20, 5, 20]);
    }

    #[test]
    fn a_cached_answer_needs_no_model() {
        let mut point = point();
        let cache = Cache { hits: 3, misses: 1, hit_us: 1.0, miss_us: 1.0 };
        point.server.as_mut().expect("samples have a server").cache = Some(cache);
        check(&point, [10, 56, 5, 3, 5, 1, 20]);
    }
}
