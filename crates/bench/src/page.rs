//! What does the page show that `--html` writes?
//!
//! One file without scripts and without anything from elsewhere. It is light or dark as the reader's system is.

mod tables;

use std::fmt::Write as _;

use crate::options::Protocol;
use crate::plots;
use crate::results::{Level, Point, Results, SizeSweep};

const STYLE: &str = include_str!("page/style.css");

/// The whole page.
pub(crate) fn page(results: &Results) -> String {
    let about = &results.about;
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<title>{model} – nerite bench</title>\n<style>\n{STYLE}{}\n</style>\n\
         </head>\n<body>\n<main>\n<header>\n<h1>{model}</h1>\n<p>{}, measured by nerite bench</p>\n</header>\n",
        plots::theme(),
        escaped(&about.date),
        model = escaped(&about.model),
    );
    out += &section("setup", "Setup", "", &tables::setup(about));
    if !results.points.is_empty() {
        out += &levels(&results.points);
    }
    for sweep in &results.sizes {
        out += &sizes(sweep);
    }
    if !results.configs.is_empty() {
        let note = "Labels are rows of a batch × instances, and the delay. On the front, no configuration has more throughput at \
                    less latency.";
        let picture = plots::configs(&results.configs, about.percentile);
        let content = figure(&picture) + &tables::configs(&results.configs, about.percentile);
        out += &section("configs", "Configurations", note, &content);
    }
    out + "</main>\n</body>\n</html>\n"
}

/// What is shown of the levels of load.
fn levels(points: &[Point]) -> String {
    let mut out = section("figures", "Figures", "", &tables::levels(points));
    let unit = match points[0].level {
        Level::Concurrency(_) => "requests under way",
        Level::Rate(_) | Level::Intervals(_) => "requests a second",
    };
    let note = "Averages. Memory is the largest of a process.";
    out += &section("costs", "What a request cost", note, &tables::costs(points));
    let note = format!("The number at a point is its level: {unit}.");
    out += &section("latency-over-throughput", "Latency over throughput", &note, &figure(&plots::levels(points)));
    let note =
        format!("Averages. Rows are levels: {unit}. What neither client nor server accounts for is the network.");
    out += &section("time", "Where the time went", &note, &figure(&plots::parts(points)));
    let mut histograms = String::new();
    for point in points {
        let _ = writeln!(histograms, "<h3>{}</h3>", level_name(point.level));
        histograms += &figure(&plots::histogram(&point.client));
    }
    out + &section("histograms", "Distribution of latencies", "", &histograms)
}

/// What is shown of a sweep over sizes.
fn sizes(sweep: &SizeSweep) -> String {
    let load =
        sweep.points.first().map(|point| format!(" with {}", level_name(point.inline.level))).unwrap_or_default();
    let note = format!(
        "Median latency{load}, over the size of a tensor. The upright line marks the size from which on shared memory is faster."
    );
    let title = format!("Message or shared memory, {}", sweep.protocol.name());
    let content = figure(&plots::sizes(sweep)) + &tables::sizes(sweep);
    section(&format!("sizes-{}", id(sweep.protocol)), &title, &note, &content)
}

/// A level as a person reads it.
fn level_name(level: Level) -> String {
    match level {
        Level::Concurrency(1) => "1 request under way".to_owned(),
        Level::Concurrency(clients) => format!("{clients} requests under way"),
        Level::Rate(rate) | Level::Intervals(rate) => format!("{} requests/s", plots::quantity(rate)),
    }
}

fn id(protocol: Protocol) -> String {
    protocol.name().to_lowercase()
}

fn section(id: &str, title: &str, note: &str, content: &str) -> String {
    let note = if note.is_empty() { String::new() } else { format!("<p>{note}</p>\n") };
    format!("<section id=\"{id}\">\n<h2>{title}</h2>\n{note}{content}</section>\n")
}

fn figure(picture: &str) -> String {
    format!("<figure>\n{picture}</figure>\n")
}

/// Text in HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests;
