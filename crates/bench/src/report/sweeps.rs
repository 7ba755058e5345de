//! What does a report say of a sweep?

use crate::break_even::break_even;
use crate::results::{ConfigPoint, Results, SizeSweep};

/// The figures of all sweeps.
pub(crate) fn sweeps(results: &Results) -> String {
    let sizes = results.sizes.iter().map(sizes);
    let configs = (!results.configs.is_empty()).then(|| configs(&results.configs, results.about.percentile));
    sizes.chain(configs).collect::<Vec<_>>().join("\n")
}

fn sizes(sweep: &SizeSweep) -> String {
    let mut out =
        format!("{}, p50 in usec\n{:>12} {:>12} {:>12}\n", sweep.protocol.name(), "bytes", "inline", "shared");
    for point in &sweep.points {
        let [inline, shared] = [&point.inline, &point.shared].map(|point| point.client.percentile_us(50.0));
        out += &format!("{:>12} {inline:>12.1} {shared:>12.1}\n", point.bytes);
    }
    match break_even(&sweep.points) {
        Some(bytes) => out + &format!("Shared memory is faster from {bytes:.0} bytes on.\n"),
        None => out + "The two do not cross in this range of sizes.\n",
    }
}

fn configs(configs: &[ConfigPoint], percentile: Option<u8>) -> String {
    let latency = percentile.map_or("average".to_owned(), |percentile| format!("p{percentile}"));
    let title = format!("{latency} usec");
    let mut out = format!("{:>6} {:>10} {:>10} {:>12} {title:>14}\n", "batch", "instances", "delay us", "infer/sec");
    for config in configs {
        let client = &config.point.client;
        let mark = match (config.is_best, config.is_front) {
            (true, _) => "  best",
            (false, true) => "  no other is better in both",
            (false, false) => "",
        };
        let (throughput, latency) = (client.throughput, client.stabilized_us(percentile));
        out += &format!(
            "{:>6} {:>10} {:>10} {throughput:>12.1} {latency:>14.0}{mark}\n",
            config.batch, config.instances, config.delay_us
        );
    }
    out
}
