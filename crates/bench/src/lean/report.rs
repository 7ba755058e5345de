//! How are measurements printed?

use std::time::Duration;

/// The measurements.
pub(crate) struct Cell {
    pub(crate) protocol: &'static str,
    pub(crate) placement: &'static str,
    pub(crate) bytes: usize,
    pub(crate) concurrency: usize,
}

/// The costs.
pub(crate) struct Costs {
    /// Length of the measurement.
    pub(crate) seconds: f64,
    /// Time of each request that ended in it, ascending.
    pub(crate) took: Vec<Duration>,
    pub(crate) server_cpu_us: Option<u64>,
    pub(crate) client_cpu_us: u64,
}

pub(crate) fn title(json: bool) {
    if !json {
        println!(
            "| protocol | placement | bytes | c | infer/s | p50 µs | p90 µs | p99 µs | server CPU µs | client CPU µs |"
        );
        println!("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|");
    }
}

pub(crate) fn line(cell: &Cell, costs: &Costs, json: bool) {
    println!("{}", if json { object(cell, costs) } else { row(cell, costs) });
}

/// The value below which this share of an ascending list lies, in µs.
pub(crate) fn percentile_us(ascending: &[Duration], share: f64) -> f64 {
    let last = ascending.len().saturating_sub(1);
    let at = (last as f64 * share).round() as usize;
    ascending.get(at).map_or(f64::NAN, |one| one.as_secs_f64() * 1e6)
}

fn object(cell: &Cell, costs: &Costs) -> String {
    let Cell { protocol, placement, bytes, concurrency } = cell;
    let requests = costs.took.len();
    let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|share| percentile_us(&costs.took, share));
    let server = costs.server_cpu_us.map_or("null".to_owned(), |us| format!("{:.2}", us as f64 / requests as f64));
    format!(
        r#"{{"protocol":"{protocol}","placement":"{placement}","bytes":{bytes},"concurrency":{concurrency},"requests":{requests},"seconds":{:.3},"per_second":{:.1},"p50_us":{p50:.1},"p90_us":{p90:.1},"p99_us":{p99:.1},"server_cpu_us":{server},"client_cpu_us":{:.2}}}"#,
        costs.seconds,
        requests as f64 / costs.seconds,
        costs.client_cpu_us as f64 / requests as f64
    )
}

fn row(cell: &Cell, costs: &Costs) -> String {
    let Cell { protocol, placement, bytes, concurrency } = cell;
    let requests = costs.took.len() as f64;
    let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|share| percentile_us(&costs.took, share));
    let server = costs.server_cpu_us.map_or("–".to_owned(), |us| format!("{:.1}", us as f64 / requests));
    format!(
        "| {protocol} | {placement} | {bytes} | {concurrency} | {:.0} | {p50:.1} | {p90:.1} | {p99:.1} | {server} | {:.1} |",
        requests / costs.seconds,
        costs.client_cpu_us as f64 / requests
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let took: Vec<Duration> = (1..=101).map(Duration::from_micros).collect();
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|share| percentile_us(&took, share) as u64), [1, 51, 100, 101]);
        assert!(percentile_us(&[], 0.5).is_nan());
    }

    #[test]
    fn an_object_has_the_cost_per_request() {
        let cell = Cell { protocol: "http", placement: "shm", bytes: 64, concurrency: 1 };
        let took = vec![Duration::from_micros(100); 4];
        let text = object(&cell, &Costs { seconds: 2.0, took, server_cpu_us: Some(40), client_cpu_us: 20 });
        assert!(text.contains(r#""per_second":2.0,"p50_us":100.0"#), "{text}");
        assert!(text.contains(r#""server_cpu_us":10.00,"client_cpu_us":5.00"#), "{text}");
    }
}
