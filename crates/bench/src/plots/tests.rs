//! Do pictures show each point?

use super::*;
use crate::results::{ConfigPoint, Point};
use crate::samples;

#[track_caller]
fn check(picture: &str, circles: usize, texts: &[&str]) {
    assert!(picture.starts_with("<svg ") && picture.trim_end().ends_with("</svg>"));
    assert!(!picture.contains("NaN") && !picture.contains("inf\""));
    assert_eq!(picture.matches("<circle ").count(), circles);
    for text in texts {
        let shown: Vec<&str> = picture.lines().filter(|line| !line.starts_with('<')).collect();
        assert!(shown.contains(text), "{text} is none of {shown:?}");
    }
}

#[test]
fn levels_have_a_point_for_each_percentile() {
    let axes = ["throughput (inferences/s)", "latency (log scale)", "p50", "p99"];
    let points = samples::results().points;
    check(&levels(&points), 8, &[&axes[..], &["1", "2", "4", "8"]].concat());
    check(&levels(&points[..1]), 2, &axes);
}

#[test]
fn parts_have_a_name_and_a_bar_for_each_level() {
    let points = samples::results().points;
    let names = ["client send", "network, other", "queue", "input", "infer", "output", "client receive"];
    let picture = parts(&points);
    check(&picture, 0, &names);
    // Seven marks of the legend, and seven parts of each of four bars.
    assert_eq!(picture.matches("<rect ").count(), 7 * 5);
    let bar: Vec<(i32, i32)> =
        picture.lines().filter(|line| line.starts_with("<rect ")).skip(7 * 4).map(across).collect();
    for pair in bar.windows(2) {
        assert!(((pair[0].0 + pair[0].1) - pair[1].0).abs() <= 1, "{bar:?}");
    }
}

/// Where a rectangle begins, and its width.
fn across(line: &str) -> (i32, i32) {
    let number = |name: &str| {
        let value = line.split(&format!(" {name}=\"")).nth(1).and_then(|rest| rest.split('"').next());
        value.and_then(|value| value.parse().ok()).expect("a rectangle has numbers")
    };
    (number("x"), number("width"))
}

#[test]
fn a_histogram_has_its_percentiles() {
    let client = samples::point(1, 400.0).client;
    check(&histogram(&client), 0, &["requests", "p50 407 µs", "p99 1.38 ms"]);
}

#[test]
fn sizes_have_a_point_for_each_memory_and_their_crossing() {
    let results = samples::results();
    check(
        &sizes(&results.sizes[0]),
        16,
        &["in the message", "in shared memory", "1 KiB", "16 MiB", "break-even at 21 KiB"],
    );
    let picture = size_picture(&results.sizes[0], "Shared memory by size");
    check(&picture, 16, &["Shared memory by size"]);
    assert!(picture.contains("<style>@media(prefers-color-scheme:dark)"), "{picture}");
}

#[test]
fn configurations_have_a_point_each_and_a_ring_around_the_best() {
    let configured = samples::results().configs;
    assert_eq!(configured.iter().filter(|one| one.is_best).count(), 1);
    check(&configs(&configured, None), configured.len() + 1, &["best", "8 × 1, 100 µs"]);
    check(&configs(&configured, Some(99)), configured.len() + 1, &[]);
}

#[test]
fn a_level_without_a_request_is_drawn_too() {
    let mut empty = samples::point(1, 400.0);
    empty.client.latencies.reset();
    (empty.client.throughput, empty.client.mean_us, empty.server) = (0.0, 0.0, None);
    check(&histogram(&empty.client), 0, &[]);
    check(&levels(&[empty.clone()]), 0, &[]);
    check(&parts(&[empty.clone()]), 0, &[]);
    let config =
        ConfigPoint { batch: 1, instances: 1, delay_us: 0, point: Point { ..empty }, is_best: false, is_front: true };
    check(&configs(&[config], None), 0, &[]);
}
