//! Which trace settings hold for the server and for each model?

use std::fs;
use std::path::Path;

use nerite_request::setting::{TraceChange, TraceSettings};
use nerite_request::{Status, TraceLevels};

use crate::files::fault_of;

/// The operator's settings at the start of the server. If a client clears a setting, it returns to this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceConfig {
    /// What is traced.
    pub levels: TraceLevels,
    /// One of this many requests is traced.
    pub rate: u32,
    /// How many requests are traced in all; -1 for no limit.
    pub count: i32,
    /// Traces in each numbered file; 0 for one file.
    pub log_frequency: u32,
    /// The file; empty for none.
    pub file: String,
    /// Set if traces are sent to a collector as spans, and not written to a file.
    pub spans: Option<SpanConfig>,
}

/// How spans are sent to an OpenTelemetry collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanConfig {
    /// The URL that they are posted to.
    pub url: String,
    /// The attributes of the resource that they come from. Of several values with one name the last is used.
    pub resource: Vec<(String, String)>,
    /// The most spans that wait to be sent; spans beyond that are dropped.
    pub queue_max: u32,
    /// The longest time that they wait.
    pub delay_ms: u32,
    /// Spans of one post.
    pub batch_max: u32,
    /// The time limit of a post.
    pub timeout_ms: u32,
    /// HTTP headers of each post.
    pub headers: Vec<(String, String)>,
    /// A file of certificates to trust in place of the system's; empty for none.
    pub certificates: String,
}

/// Triton's default.
pub const COLLECTOR_URL: &str = "http://localhost:4318/v1/traces";

impl Default for SpanConfig {
    fn default() -> SpanConfig {
        SpanConfig {
            url: COLLECTOR_URL.to_owned(),
            resource: Vec::new(),
            queue_max: 2048,
            delay_ms: 5000,
            batch_max: 512,
            timeout_ms: 10_000,
            headers: Vec::new(),
            certificates: String::new(),
        }
    }
}

impl SpanConfig {
    /// Refuses a URL with a user's name or password, because clients may read the URL in the trace settings, and it is in the log. The Err does not
    /// contain it.
    pub fn check(&self) -> Result<(), String> {
        let rest = self.url.split_once("://").map_or(self.url.as_str(), |(_, rest)| rest);
        if !rest.split(['/', '?', '#']).next().is_some_and(|authority| authority.contains('@')) {
            return Ok(());
        }
        Err("the URL of the collector has a user's name or password before '@'; give these as a header: \
             OTEL_EXPORTER_OTLP_HEADERS=authorization=Basic%20<base64 of name:password>"
            .to_owned())
    }
}

impl Default for TraceConfig {
    fn default() -> TraceConfig {
        TraceConfig {
            levels: TraceLevels::default(),
            rate: 1000,
            count: -1,
            log_frequency: 0,
            file: String::new(),
            spans: None,
        }
    }
}

impl TraceConfig {
    /// These settings, replaced by those that are set in `own`.
    pub(crate) fn with(&self, own: &OwnSettings) -> TraceConfig {
        TraceConfig {
            levels: own.levels.unwrap_or(self.levels),
            rate: own.rate.unwrap_or(self.rate),
            count: own.count.unwrap_or(self.count),
            log_frequency: own.log_frequency.unwrap_or(self.log_frequency),
            file: self.file.clone(),
            spans: self.spans.clone(),
        }
    }

    /// Whether traces go to numbered files, `<file>.0` and so on.
    pub(crate) fn is_numbered(&self) -> bool {
        self.log_frequency != 0 || self.count > 0
    }

    /// Why traces cannot be written to the file now, as far as this can be found without creating the file.
    pub fn file_fault(&self) -> Option<String> {
        let (file, path) = (&self.file, Path::new(&self.file));
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
        if let Some(directory) = directory.filter(|directory| !directory.is_dir()) {
            let directory = directory.display();
            return Some(format!("'{file}' is to be in '{directory}', which is not there; make that directory"));
        }
        let found = fs::metadata(path).ok().filter(|_| !self.is_numbered())?;
        fault_of(found.file_type()).map(|fault| format!("'{file}': {fault}"))
    }

    /// What requests record. Spans have no tensors.
    pub(crate) fn levels_noted(&self) -> TraceLevels {
        TraceLevels { tensors: self.levels.tensors && self.spans.is_none(), ..self.levels }
    }

    /// Why nothing is traced, in Triton's words; `None` if requests are traced.
    pub(crate) fn obstacle(&self) -> Option<&'static str> {
        if self.levels == TraceLevels::default() {
            Some("tracing is disabled")
        } else if self.rate == 0 && self.spans.is_none() {
            Some("sample rate must be non-zero")
        } else if self.file.is_empty() && self.spans.is_none() {
            Some("trace file name is not given")
        } else {
            None
        }
    }

    /// Refuses settings that request traces if nothing can be traced.
    pub(crate) fn check(&self) -> Result<(), Status> {
        match self.obstacle() {
            Some(reason) if self.levels != TraceLevels::default() => {
                Err(Status::invalid(format!("Attempting to set invalid trace setting :{reason}")))
            }
            _ => Ok(()),
        }
    }

    /// The settings as clients get them, in Triton's order. `left` is the number of traces that are still to come.
    pub(crate) fn report(&self, left: i32) -> TraceSettings {
        let levels = [(self.levels.timestamps, "TIMESTAMPS"), (self.levels.tensors, "TENSORS")];
        let mut levels: Vec<String> =
            levels.iter().filter(|(is_on, _)| *is_on).map(|(_, name)| (*name).to_owned()).collect();
        if levels.is_empty() {
            levels.push("OFF".to_owned());
        }
        let one = |key: &str, value: String| (key.to_owned(), vec![value]);
        let mut report = vec![
            ("trace_level".to_owned(), levels),
            one("trace_rate", self.rate.to_string()),
            one("trace_count", left.to_string()),
        ];
        match &self.spans {
            None => report.extend([
                one("log_frequency", self.log_frequency.to_string()),
                one("trace_file", self.file.clone()),
                one("trace_mode", "triton".to_owned()),
            ]),
            Some(spans) => report.extend([
                one("trace_mode", "opentelemetry".to_owned()),
                one("url", spans.url.clone()),
                one("bsp_schedule_delay", spans.delay_ms.to_string()),
                ("resource".to_owned(), spans.resource.iter().map(|(name, value)| format!("{name}={value}")).collect()),
                one("bsp_max_export_batch_size", spans.batch_max.to_string()),
                one("bsp_max_queue_size", spans.queue_max.to_string()),
            ]),
        }
        report
    }
}

/// The settings of the server, or of one model. If a setting is `None`, the server's setting holds for a model, and that of the start for the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnSettings {
    levels: Option<TraceLevels>,
    rate: Option<u32>,
    count: Option<i32>,
    log_frequency: Option<u32>,
}

impl OwnSettings {
    /// These settings after a change, which is applied completely or not at all.
    pub(crate) fn changed(&self, change: TraceChange) -> Result<OwnSettings, Status> {
        let mut next = self.clone();
        for (key, values) in change {
            match key.as_str() {
                "trace_level" => match values.map(levels).transpose()? {
                    None => next.levels = None,
                    // As in Triton, unknown words change nothing.
                    Some(None) => {}
                    Some(levels) => next.levels = levels,
                },
                "trace_rate" => next.rate = values.map(|values| number(&key, &values)).transpose()?,
                "log_frequency" => next.log_frequency = values.map(|values| number(&key, &values)).transpose()?,
                "trace_count" => next.count = values.map(|values| count(&key, &values)).transpose()?,
                "trace_file" => {
                    return Err(Status::unsupported("trace file location can not be updated through network protocol"));
                }
                // As in Triton, unknown settings have no effect.
                _ => {}
            }
        }
        Ok(next)
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == OwnSettings::default()
    }

    /// Whether all settings are set here.
    pub(crate) fn is_whole(&self) -> bool {
        self.levels.is_some() && self.rate.is_some() && self.count.is_some() && self.log_frequency.is_some()
    }
}

fn only<'v>(key: &str, values: &'v [String]) -> Result<&'v str, Status> {
    match values {
        [value] => Ok(value),
        _ => Err(Status::invalid(format!("expect only 1 value for '{key}'"))),
    }
}

fn number(key: &str, values: &[String]) -> Result<u32, Status> {
    let value = bounded(key, only(key, values)?, 0, i64::from(u32::MAX))?;
    Ok(u32::try_from(value).unwrap_or_default())
}

fn count(key: &str, values: &[String]) -> Result<i32, Status> {
    let value = only(key, values)?;
    // Triton has another text for a number that is too small and fits into 32 bits.
    if (value.parse::<i32>()).is_ok_and(|count| count < -1) {
        return Err(Status::invalid(format!("Unable to parse '{key}'. Expecting value >= -1, got: {value}")));
    }
    let count = bounded(key, value, -1, i64::from(i32::MAX))?;
    Ok(i32::try_from(count).unwrap_or(-1))
}

/// `None` if none of the words is a level.
fn levels(values: Vec<String>) -> Result<Option<TraceLevels>, Status> {
    let has = |name: &str| values.iter().any(|level| level == name);
    let is_off = has("OFF");
    if values.len() > 1 && is_off {
        return Err(Status::invalid("Expect only one trace level 'OFF' is specified"));
    }
    let levels = TraceLevels { timestamps: has("TIMESTAMPS"), tensors: has("TENSORS") };
    Ok((is_off || levels != TraceLevels::default()).then_some(levels))
}

fn bounded(key: &str, value: &str, min: i64, max: i64) -> Result<i64, Status> {
    let digits = value.strip_prefix('-').unwrap_or(value);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Status::invalid(format!("Unable to parse '{key}', got: {value}")));
    }
    match value.parse::<i64>() {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        _ => Err(Status::invalid(format!(
            "Unable to parse '{key}', value is out of range [ {min}, {max} ], got: {value}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(key: &str, values: &[&str], expected: Result<&str, &str>) {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        let changed = OwnSettings::default().changed(vec![(key.to_owned(), Some(values))]);
        let now = changed.map(|own| {
            let report = TraceConfig::default().with(&own).report(own.count.unwrap_or(-1));
            report.into_iter().find(|(report, _)| report == key).map(|(_, values)| values.join(" ")).unwrap_or_default()
        });
        assert_eq!(now.map_err(|error| error.message), expected.map(str::to_owned).map_err(str::to_owned));
    }

    #[test]
    fn a_change_is_taken_over_or_refused_with_its_reason() {
        check("trace_level", &["TIMESTAMPS", "BOGUS"], Ok("TIMESTAMPS"));
        check("trace_level", &["BOGUS"], Ok("OFF"));
        check("trace_level", &["OFF"], Ok("OFF"));
        check("trace_level", &["OFF", "TENSORS"], Err("Expect only one trace level 'OFF' is specified"));
        check("trace_level", &["TENSORS", "TIMESTAMPS", "TENSORS"], Ok("TIMESTAMPS TENSORS"));
        check("trace_rate", &["5"], Ok("5"));
        check("trace_rate", &["x"], Err("Unable to parse 'trace_rate', got: x"));
        let text = "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: -1";
        check("trace_rate", &["-1"], Err(text));
        check("trace_count", &["7"], Ok("7"));
        let range = "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: -99999999999";
        check("trace_count", &["-99999999999"], Err(range));
        check("trace_count", &["-2"], Err("Unable to parse 'trace_count'. Expecting value >= -1, got: -2"));
        check("trace_rate", &["1", "2"], Err("expect only 1 value for 'trace_rate'"));
        check("trace_file", &["/x"], Err("trace file location can not be updated through network protocol"));
        check("anything", &["x"], Ok(""));
    }

    #[test]
    fn words_that_are_no_level_change_nothing() {
        let change = |own: OwnSettings, levels: &[&str]| {
            let levels = levels.iter().map(|level| (*level).to_owned()).collect();
            own.changed(vec![("trace_level".into(), Some(levels))]).expect("words")
        };
        let traced = change(OwnSettings::default(), &["TENSORS"]);
        assert_eq!(change(traced.clone(), &["BOGUS"]), traced);
        assert_eq!(change(traced.clone(), &[]), traced);
        assert_ne!(change(traced.clone(), &["OFF"]), traced);
        assert!(change(OwnSettings::default(), &["timestamps"]).is_empty());
    }

    #[test]
    fn a_collector_is_named_in_place_of_a_file() {
        let resource = vec![("a".to_owned(), "b".to_owned()), ("c".to_owned(), "d=e".to_owned())];
        let spans = Some(SpanConfig { resource, ..SpanConfig::default() });
        let report = TraceConfig { spans, ..TraceConfig::default() }.report(-1);
        let names: Vec<_> = report.iter().skip(3).map(|(name, values)| (name.as_str(), values.join(" "))).collect();
        let expected = [
            ("trace_mode", "opentelemetry"),
            ("url", "http://localhost:4318/v1/traces"),
            ("bsp_schedule_delay", "5000"),
            ("resource", "a=b c=d=e"),
            ("bsp_max_export_batch_size", "512"),
            ("bsp_max_queue_size", "2048"),
        ];
        assert_eq!(names, expected.map(|(name, value)| (name, value.to_owned())));
    }

    #[test]
    fn what_is_cleared_returns_to_what_the_operator_said() {
        let start = TraceConfig { rate: 7, ..TraceConfig::default() };
        let set =
            OwnSettings::default().changed(vec![("trace_rate".into(), Some(vec!["9".into()]))]).expect("a number");
        assert_eq!(start.with(&set).rate, 9);
        let cleared = set.changed(vec![("trace_rate".into(), None)]).expect("clearing");
        assert_eq!((start.with(&cleared).rate, cleared.is_empty()), (7, true));
    }

    #[test]
    fn settings_that_could_trace_nothing_are_refused() {
        let on = TraceConfig { levels: TraceLevels { timestamps: true, tensors: false }, ..TraceConfig::default() };
        let text = |config: &TraceConfig| config.check().map_err(|error| error.message);
        let refused = |reason| Err(format!("Attempting to set invalid trace setting :{reason}"));
        assert_eq!(text(&on), refused("trace file name is not given"));
        assert_eq!(text(&TraceConfig { rate: 0, ..on.clone() }), refused("sample rate must be non-zero"));
        assert_eq!(text(&TraceConfig { file: "/x".into(), ..on.clone() }), Ok(()));
        assert_eq!(text(&TraceConfig { rate: 0, ..TraceConfig::default() }), Ok(()));
        assert_eq!(text(&TraceConfig { rate: 0, spans: Some(SpanConfig::default()), ..on.clone() }), Ok(()));
    }

    #[test]
    fn what_stands_in_the_way_of_a_trace_file_shows_before_the_first_trace() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str, log_frequency| {
            let file = if name.is_empty() { String::new() } else { folder.path().join(name).display().to_string() };
            let fault = TraceConfig { log_frequency, file, ..TraceConfig::default() }.file_fault();
            fault.map(|fault| fault.replace(&folder.path().display().to_string(), "F"))
        };
        assert_eq!(at("", 0), None);
        assert_eq!(at("t.json", 0), None);
        let missing = "'F/none/t.json' is to be in 'F/none', which is not there; make that directory";
        assert_eq!(at("none/t.json", 0).as_deref(), Some(missing));
        fs::create_dir(folder.path().join("d")).expect("made");
        let text = "'F/d': it is a directory; name a regular file, or a path where there is nothing";
        assert_eq!(at("d", 0).as_deref(), Some(text));
        assert_eq!(at("d", 5), None, "the files are d.0 and so on");
    }
}
