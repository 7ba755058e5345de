//! What is traced from the start?

use nerite_api::{TraceConfig, TraceLevels};

use super::SettingsError;
use super::collector::collector;
use crate::flags::{BadValue, Values, bad};
use crate::misused::no_setting;

const FLAG: &str = "trace-config";
/// A file of JSON.
const TRITON: &str = "triton";
/// Spans for a collector.
const OPENTELEMETRY: &str = "opentelemetry";
const KNOWN: [&str; 11] = [
    "level",
    "rate",
    "count",
    "mode",
    "triton,file",
    "triton,log-frequency",
    "opentelemetry,url",
    "opentelemetry,resource",
    "opentelemetry,bsp_max_queue_size",
    "opentelemetry,bsp_schedule_delay",
    "opentelemetry,bsp_max_export_batch_size",
];

/// The settings, and log lines about them.
pub(super) fn tracing(values: &Values<'_>) -> Result<(TraceConfig, Vec<String>), SettingsError> {
    let mut config = deprecated(values)?;
    let (mut is_off, mut has_spans, mut spans, mut notes) = (false, false, Vec::new(), Vec::new());
    for text in values.all(FLAG) {
        let (mode, key, value) = parts(text)?;
        notes.extend(unknown(&mode, key));
        match (mode.as_str(), key) {
            ("", "rate") => config.rate = number(value)?,
            ("", "count") => config.count = number(value)?,
            ("", "level") => {
                let levels = level(FLAG, value)?;
                is_off |= levels == TraceLevels::default();
                config.levels.timestamps |= levels.timestamps;
                config.levels.tensors |= levels.tensors;
            }
            ("", "mode") => has_spans = known_mode(value)? == OPENTELEMETRY,
            (TRITON, "file") => value.clone_into(&mut config.file),
            (TRITON, "log-frequency") => config.log_frequency = number(value)?,
            (OPENTELEMETRY, key) => spans.push((key, value)),
            // As in Triton, unknown settings have no effect. A note says so.
            _ => {}
        }
    }
    if is_off {
        config.levels = TraceLevels::default();
    }
    // Read in every mode, so that faults are reported.
    let (collector, collector_notes) = collector(FLAG, &spans, |name| std::env::var(name).ok())?;
    if !has_spans {
        return Ok((config, notes));
    }
    notes.extend(collector_notes);
    collector.check().map_err(|reason| bad(FLAG, reason))?;
    if config.levels.tensors {
        notes.push(format!("--{FLAG} level=TENSORS has no effect with mode={OPENTELEMETRY}: spans have no tensors"));
    }
    for flag in ["trace-file", "trace-log-frequency"].into_iter().filter(|flag| values.has(flag)) {
        notes.push(format!("--{flag} has no effect with --{FLAG} mode={OPENTELEMETRY}"));
    }
    let config = TraceConfig { file: String::new(), log_frequency: 0, spans: Some(collector), ..config };
    Ok((config, notes))
}

/// The settings of the deprecated flags that --trace-config replaces.
fn deprecated(values: &Values<'_>) -> Result<TraceConfig, BadValue> {
    let start = TraceConfig::default();
    let mut levels = start.levels;
    for word in values.all("trace-level") {
        let more = level("trace-level", word)?;
        (levels.timestamps, levels.tensors) = (levels.timestamps | more.timestamps, levels.tensors | more.tensors);
    }
    if values.all("trace-level").any(|word| level("trace-level", word).is_ok_and(|one| one == TraceLevels::default())) {
        levels = TraceLevels::default();
    }
    Ok(TraceConfig {
        levels,
        rate: values.int("trace-rate", start.rate)?,
        count: values.int("trace-count", start.count)?,
        log_frequency: values.int("trace-log-frequency", start.log_frequency)?,
        file: values.text("trace-file").unwrap_or("").to_owned(),
        spans: None,
    })
}

/// `<mode>,<setting>=<value>` or `<setting>=<value>`.
fn parts(text: &str) -> Result<(String, &str, &str), BadValue> {
    let (mode, rest) = text.split_once(',').filter(|(mode, _)| !mode.contains('=')).unwrap_or(("", text));
    if text.starts_with(',') {
        let reason = format!(
            "No trace mode specified. --{FLAG} option format is <trace mode>,<setting>=<value> or <setting>=<value>. Got {text}"
        );
        return Err(bad(FLAG, reason));
    }
    let mode = if mode.is_empty() { String::new() } else { known_mode(mode)? };
    match rest.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((mode, key, value)),
        _ => Err(bad(FLAG, format!("--{FLAG} option format is '<trace mode>,<setting>=<value>'. Got {text}"))),
    }
}

/// The log line about a setting that the mode does not have. It names the setting of that name that another mode has, or else the nearest one.
fn unknown(mode: &str, key: &str) -> Option<String> {
    let name = if mode.is_empty() { key.to_owned() } else { format!("{mode},{key}") };
    if KNOWN.contains(&name.as_str()) {
        return None;
    }
    let elsewhere = KNOWN.into_iter().find(|known| known.rsplit(',').next() == Some(key));
    Some(no_setting(FLAG, &name, elsewhere, &KNOWN))
}

fn known_mode(word: &str) -> Result<String, BadValue> {
    let mode = word.to_ascii_lowercase();
    if mode == TRITON || mode == OPENTELEMETRY {
        return Ok(mode);
    }
    let reason = format!(
        "invalid value for trace mode option: {mode}. Available options are \"{TRITON}\" and \"{OPENTELEMETRY}\""
    );
    Err(bad(FLAG, reason))
}

fn level(flag: &'static str, word: &str) -> Result<TraceLevels, BadValue> {
    let (timestamps, tensors) = match word.to_ascii_lowercase().as_str() {
        "false" | "off" => (false, false),
        "true" | "on" | "min" | "max" | "timestamps" => (true, false),
        "tensors" => (false, true),
        other => return Err(bad(flag, format!("invalid value for trace level option: {other}"))),
    };
    Ok(TraceLevels { timestamps, tensors })
}

fn number<T: std::str::FromStr>(value: &str) -> Result<T, BadValue> {
    value.trim().parse().map_err(|_| bad(FLAG, format!("Invalid option value. Got {value}")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::flags::parse;

    fn read(line: &str) -> Result<(TraceConfig, Vec<String>), String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        tracing(&Values(&parse(&words).unwrap())).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn check(line: &str, levels: &str, expect: (u32, i32, u32, &str)) {
        let config = read(line).unwrap().0;
        let found = [(config.levels.timestamps, 'T'), (config.levels.tensors, 'X')];
        let found: String = found.iter().filter(|(is_on, _)| *is_on).map(|(_, letter)| *letter).collect();
        assert_eq!(
            (found.as_str(), config.rate, config.count, config.log_frequency),
            (levels, expect.0, expect.1, expect.2),
            "{line}"
        );
        assert_eq!(config.file, expect.3, "{line}");
    }

    #[test]
    fn settings_of_the_mode_and_of_all_modes_are_read() {
        check("", "", (1000, -1, 0, ""));
        let all = "--trace-config=triton,file=/t.json --trace-config=rate=5 --trace-config=level=TIMESTAMPS --trace-config=count=7 \
                   --trace-config=triton,log-frequency=3";
        check(all, "T", (5, 7, 3, "/t.json"));
        check("--trace-config=level=tensors --trace-config=level=min", "TX", (1000, -1, 0, ""));
        check("--trace-config=level=tensors --trace-config=level=off", "", (1000, -1, 0, ""));
        check("--trace-config=log-frequency=3 --trace-config=Triton,rate=3", "", (1000, -1, 0, ""));
        check(
            "--trace-file=/old --trace-rate=2 --trace-level=max --trace-count=1 --trace-log-frequency=9",
            "T",
            (2, 1, 9, "/old"),
        );
        check("--trace-file=/old --trace-config=triton,file=/a=b,c", "", (1000, -1, 0, "/a=b,c"));
    }

    #[test]
    fn what_is_no_setting_is_refused() {
        let refused = |line: &str, text: &str| {
            let found = read(line);
            assert!(found.as_ref().is_err_and(|found| found.contains(text)), "{line}: {found:?}");
        };
        refused("--trace-config=,file=/t", "No trace mode specified.");
        refused("--trace-config=triton,file", "option format is");
        refused("--trace-config=zipkin,file=/t", "invalid value for trace mode option: zipkin");
        refused("--trace-config=level=loud", "invalid value for trace level option: loud");
        refused("--trace-config=rate=x", "Got x");
        refused("--trace-config=opentelemetry,bsp_max_queue_size=x", "Got x");
        refused("--trace-config=opentelemetry,resource=x", "Got x");
        refused("--trace-config=mode=opentelemetry --trace-config=opentelemetry,url=http://a:b@c", "before '@'");
    }

    #[test]
    fn a_setting_that_is_unknown_or_of_another_mode_is_reported_with_the_one_that_was_meant() {
        for (given, expect) in [
            ("levl=TIMESTAMPS", "--trace-config=levl has no effect: there is no such setting; did you mean 'level'?"),
            (
                "triton,level=TIMESTAMPS",
                "--trace-config=triton,level has no effect: there is no such setting; did you mean 'level'?",
            ),
            ("Triton,fiel=/t", "did you mean 'triton,file'?"),
            ("file=/t", "did you mean 'triton,file'?"),
            ("opentelemetry,ulr=http://c", "did you mean 'opentelemetry,url'?"),
            ("colour=1", "there is no such setting; there are: level, rate, count, mode, triton,file, "),
        ] {
            for mode in ["triton", "opentelemetry"] {
                let (_, notes) = read(&format!("--trace-config=mode={mode} --trace-config={given}")).unwrap();
                assert!(notes.len() == 1 && notes[0].contains(expect), "{given}: {notes:?}");
            }
        }
        for known in KNOWN {
            assert_eq!(unknown("", known), None);
        }
    }

    #[test]
    fn spans_have_settings_of_their_own() {
        let line = "--trace-config=mode=OpenTelemetry --trace-config=level=timestamps --trace-config=rate=0 \
                    --trace-config=opentelemetry,url=http://c/x --trace-config=opentelemetry,resource=a=b \
                    --trace-config=opentelemetry,bsp_max_queue_size=9 --trace-config=triton,file=/t.json";
        let (config, notes) = read(line).unwrap();
        let spans = config.spans.unwrap();
        assert_eq!((spans.url.as_str(), spans.queue_max, config.file.as_str()), ("http://c/x", 9, ""));
        assert!(spans.resource.contains(&("a".to_owned(), "b".to_owned())));
        assert_eq!((config.levels.timestamps, config.rate, notes), (true, 0, Vec::<String>::new()));
        let (other, notes) = read("--trace-config=opentelemetry,url=http://c/x --trace-config=level=tensors").unwrap();
        assert!(other.spans.is_none() && notes.is_empty());
        let useless = "--trace-config=mode=opentelemetry --trace-config=level=tensors --trace-file=/old";
        assert_eq!(read(useless).unwrap().1.len(), 2);
    }
}
