//! What do metrics show, and where?

use nerite_engine::LatencyMetrics;
use nerite_listen::TlsFiles;

use super::tls::{TlsFlags, tls_files};
use super::{Metrics, SettingsError};
use crate::flags::{BadValue, Values, bad, bool_of};
use crate::misused::no_setting;

const FLAG: &str = "metrics-config";
const SUMMARY_QUANTILES: &str = "summary_quantiles";
/// The settings of the flag. All but the quantiles are truth values.
const KNOWN: [&str; 4] = ["counter_latencies", "summary_latencies", SUMMARY_QUANTILES, "histogram_latencies"];
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

/// Reads the settings of the metrics. If a setting is given twice, the last value counts. As in Triton, unknown settings, and words that are no truth
/// values, have no effect. The log lines that are returned say so.
pub(super) fn metrics(values: &Values<'_>, address: &str) -> Result<(Metrics, Vec<String>), SettingsError> {
    let config = values.pairs(FLAG, '=', "<setting>=<value>")?;
    if let Some(value) = values.all(FLAG).find(|value| value.split_once('=').is_some_and(|(key, _)| key.contains(',')))
    {
        return Err(bad(FLAG, format!("--{FLAG} option format is <setting>=<value>. Got {value}")).into());
    }
    let last = |setting: &str| config.iter().rev().find(|(key, _)| *key == setting).map(|(_, value)| *value);
    let is_on = |setting: &str, default: bool| last(setting).and_then(bool_of).unwrap_or(default);
    let quantiles = last(SUMMARY_QUANTILES).map_or_else(|| Ok(QUANTILES.to_vec()), quantiles)?;
    let notes = config.iter().filter_map(|(key, value)| without_effect(key, value)).collect();
    let metrics = Metrics {
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
    };
    Ok((metrics, notes))
}

fn without_effect(key: &str, value: &str) -> Option<String> {
    if !KNOWN.contains(&key) {
        return Some(no_setting(FLAG, key, None, &KNOWN));
    }
    let is_wrong = key != SUMMARY_QUANTILES && bool_of(value).is_none();
    is_wrong.then(|| format!("--{FLAG}={key}={value} has no effect: {key} is true or false, and not '{value}'"))
}

/// The certificates of the metrics port, and of the page's own port.
pub(super) fn tls(values: &Values<'_>) -> Result<Option<TlsFiles>, SettingsError> {
    tls_files(values, &TLS)
}

/// `0.5:0.05,0.9:0.01`. The allowed errors are checked, but have no effect: all quantiles are equally exact here.
fn quantiles(text: &str) -> Result<Vec<f64>, BadValue> {
    let one = |pair: &str| {
        let (quantile, error) = pair.split_once(':')?;
        let number = |text: &str| leading_number(text).filter(|number| (0.0..=1.0).contains(number));
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

/// The number that a text begins with. As in Triton, which reads it by `std::stod`, what follows the number is ignored.
fn leading_number(text: &str) -> Option<f64> {
    let text = text.trim_start();
    (1..=text.len()).rev().find_map(|end| text.get(..end)?.parse().ok())
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
        let found = metrics(&Values(&given), "a").map(|(found, _)| found).map_err(|error| error.to_string());
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
        // A test of Triton starts its server with this.
        check(
            "--metrics-config=summary_latencies=true --metrics-config=summary_quantiles=0.1:0.0.1,0.7:0.01",
            Ok((true, Some(&[0.1, 0.7]), false)),
        );
        check("--metrics-config=summary_quantiles=abc", Err("Got abc"));
        check("--metrics-config=summary_quantiles=0.5:x", Err("Got 0.5:x"));
        check("--metrics-config=summary_quantiles=nan:0", Err("Got nan:0"));
        check("--metrics-config=summary_quantiles=0.5:0.05,2:0", Err("Got 2:0"));
        check("--metrics-config=summary_latencies", Err("option format is"));
        check("--metrics-config=x,summary_latencies=true", Err("Got x,summary_latencies=true"));
    }

    #[test]
    fn what_has_no_effect_is_reported() {
        for (value, expect) in [
            ("summary_latencies=true", None),
            ("histogram_latencies=OFF", None),
            ("summary_quantiles=0.5:0.05", None),
            (
                "summary_latencie=true",
                Some("there is no such setting; did you mean 'summary_latencies'?; there are: counter_latencies, "),
            ),
            ("colour=1", Some("--metrics-config=colour has no effect: there is no such setting; there are: ")),
            ("summary_latencies=ture", Some("summary_latencies is true or false, and not 'ture'")),
        ] {
            let given = parse(&[format!("--metrics-config={value}")]).unwrap();
            let (_, notes) = metrics(&Values(&given), "a").unwrap();
            assert_eq!(notes.len(), usize::from(expect.is_some()), "{notes:?}");
            assert!(notes.iter().all(|note| note.contains(expect.unwrap_or_default())), "{notes:?}");
        }
    }
}
