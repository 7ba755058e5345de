//! What do metrics show, and where?

use nerite_engine::LatencyMetrics;
use nerite_listen::TlsFiles;

use super::tls::{TlsFlags, tls_files};
use super::{Metrics, SettingsError};
use crate::flags::{BadValue, Values, bad, bool_of};

const FLAG: &str = "metrics-config";
/// The flags of the port's files.
const TLS: TlsFlags = TlsFlags {
    use_ssl: "metrics-use-ssl",
    mutual: "metrics-use-ssl-mutual",
    cert: "metrics-server-cert",
    key: "metrics-server-key",
    roots: "metrics-root-cert",
};
/// The quantiles of summaries, unless `summary_quantiles` says others.
const QUANTILES: [f64; 5] = [0.5, 0.9, 0.95, 0.99, 0.999];

/// Reads the settings of the metrics. If a setting is given twice, the last value counts. As in Triton, unknown settings are ignored.
pub(super) fn metrics(values: &Values<'_>, address: &str) -> Result<Metrics, SettingsError> {
    let config = values.pairs(FLAG, '=', "<setting>=<value>")?;
    if let Some(value) = values.all(FLAG).find(|value| value.split_once('=').is_some_and(|(key, _)| key.contains(',')))
    {
        return Err(bad(FLAG, format!("--{FLAG} option format is <setting>=<value>. Got {value}")).into());
    }
    let last = |setting: &str| config.iter().rev().find(|(key, _)| *key == setting).map(|(_, value)| *value);
    let is_on = |setting: &str, default: bool| last(setting).and_then(bool_of).unwrap_or(default);
    let quantiles = last("summary_quantiles").map_or_else(|| Ok(QUANTILES.to_vec()), quantiles)?;
    Ok(Metrics {
        address: address.to_owned(),
        port: values.int("metrics-port", 8002)?,
        cpu: values.bool("allow-cpu-metrics", true)?,
        gpu: values.bool("allow-gpu-metrics", true)?,
        // A value out of range becomes the nearest valid one.
        interval_ms: values.float("metrics-interval-ms", 2000.0)? as u64,
        counter_latencies: is_on("counter_latencies", true),
        latencies: LatencyMetrics {
            quantiles: is_on("summary_latencies", false).then_some(quantiles),
            first_response: is_on("histogram_latencies", false),
        },
        tls: tls(values)?,
    })
}

/// The certificates of the metrics port, and of the page's own port.
pub(super) fn tls(values: &Values<'_>) -> Result<Option<TlsFiles>, SettingsError> {
    tls_files(values, &TLS)
}

/// `0.5:0.05,0.9:0.01`. The allowed errors are checked, but have no effect: all quantiles are equally exact here.
fn quantiles(text: &str) -> Result<Vec<f64>, BadValue> {
    let one = |pair: &str| {
        let (quantile, error) = pair.split_once(':')?;
        let number = |text: &str| text.trim().parse().ok().filter(|number| (0.0..=1.0).contains(number));
        number(error)?;
        number(quantile)
    };
    text.split(',')
        .map(|pair| {
            let format = "summary_quantiles are pairs of numbers from 0 to 1, '<quantile>:<error>,…'";
            one(pair).ok_or_else(|| bad(FLAG, format!("{format}. Got {pair}")))
        })
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::flags::parse;

    #[track_caller]
    fn check(line: &str, expect: Result<(bool, Option<&[f64]>, bool), &str>) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let given = parse(&words).unwrap();
        let found = metrics(&Values(&given), "a").map_err(|error| error.to_string());
        let found =
            found.map(|found| (found.counter_latencies, found.latencies.quantiles, found.latencies.first_response));
        match expect {
            Ok((counters, quantiles, histogram)) => {
                assert_eq!(found, Ok((counters, quantiles.map(<[f64]>::to_vec), histogram)), "{line}");
            }
            Err(text) => assert!(found.as_ref().is_err_and(|found| found.contains(text)), "{line}: {found:?}"),
        }
    }

    #[test]
    fn what_is_shown_of_latencies_is_the_operators_choice() {
        check("", Ok((true, None, false)));
        check("--metrics-config=counter_latencies=false", Ok((false, None, false)));
        check("--metrics-config=summary_latencies=true", Ok((true, Some(&QUANTILES), false)));
        check(
            "--metrics-config=summary_latencies=true --metrics-config=summary_quantiles=0.5:0.05,0.9:0.01",
            Ok((true, Some(&[0.5, 0.9]), false)),
        );
        check("--metrics-config=histogram_latencies=true --metrics-config=other=1", Ok((true, None, true)));
        check("--metrics-config=summary_quantiles=abc", Err("Got abc"));
        check("--metrics-config=summary_quantiles=0.5:0.05,2:0", Err("Got 2:0"));
        check("--metrics-config=summary_latencies", Err("option format is"));
        check("--metrics-config=x,summary_latencies=true", Err("Got x,summary_latencies=true"));
    }
}
