//! Which trace settings hold for the server and for each model?

use nerite_request::setting::{TraceChange, TraceSettings};
use nerite_request::{Status, TraceLevels};

/// What the operator decided when the server started. A setting that a client clears returns to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceConfig {
    /// What is traced.
    pub levels: TraceLevels,
    /// One of so many requests is traced.
    pub rate: u32,
    /// How many are traced in all; -1 for no limit.
    pub count: i32,
    /// Traces in each numbered file; 0 for one file.
    pub log_frequency: u32,
    /// The file; empty for none.
    pub file: String,
}

impl Default for TraceConfig {
    fn default() -> TraceConfig {
        TraceConfig { levels: TraceLevels::default(), rate: 1000, count: -1, log_frequency: 0, file: String::new() }
    }
}

impl TraceConfig {
    /// What holds where these were set.
    pub(crate) fn with(&self, own: &OwnSettings) -> TraceConfig {
        TraceConfig {
            levels: own.levels.unwrap_or(self.levels),
            rate: own.rate.unwrap_or(self.rate),
            count: own.count.unwrap_or(self.count),
            log_frequency: own.log_frequency.unwrap_or(self.log_frequency),
            file: self.file.clone(),
        }
    }

    /// Why nothing is traced, in Triton's words; `None` if something is.
    pub(crate) fn obstacle(&self) -> Option<&'static str> {
        if self.levels == TraceLevels::default() {
            Some("tracing is disabled")
        } else if self.rate == 0 {
            Some("sample rate must be non-zero")
        } else if self.file.is_empty() {
            Some("trace file name is not given")
        } else {
            None
        }
    }

    /// An Err where these settings ask for traces and nothing can be traced.
    pub(crate) fn check(&self) -> Result<(), Status> {
        match self.obstacle() {
            Some(reason) if self.levels != TraceLevels::default() => {
                Err(Status::invalid(format!("Attempting to set invalid trace setting :{reason}")))
            }
            _ => Ok(()),
        }
    }

    /// As clients are told, in Triton's order. `left` are the traces that are still to come.
    pub(crate) fn told(&self, left: i32) -> TraceSettings {
        let levels = [(self.levels.timestamps, "TIMESTAMPS"), (self.levels.tensors, "TENSORS")];
        let mut levels: Vec<String> =
            levels.iter().filter(|(is_on, _)| *is_on).map(|(_, name)| (*name).to_owned()).collect();
        if levels.is_empty() {
            levels.push("OFF".to_owned());
        }
        let one = |key: &str, value: String| (key.to_owned(), vec![value]);
        vec![
            ("trace_level".to_owned(), levels),
            one("trace_rate", self.rate.to_string()),
            one("trace_count", left.to_string()),
            one("log_frequency", self.log_frequency.to_string()),
            one("trace_file", self.file.clone()),
            one("trace_mode", "triton".to_owned()),
        ]
    }
}

/// What was set for the server, or for one model. What is `None` follows the next wider setting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnSettings {
    levels: Option<TraceLevels>,
    rate: Option<u32>,
    count: Option<i32>,
    log_frequency: Option<u32>,
}

impl OwnSettings {
    /// These with a change, which is taken over whole or not at all.
    pub(crate) fn changed(&self, change: TraceChange) -> Result<OwnSettings, Status> {
        let mut next = self.clone();
        for (key, values) in change {
            match key.as_str() {
                "trace_level" => next.levels = values.map(levels).transpose()?,
                "trace_rate" => next.rate = values.map(|values| number(&key, &values)).transpose()?,
                "log_frequency" => next.log_frequency = values.map(|values| number(&key, &values)).transpose()?,
                "trace_count" => next.count = values.map(|values| count(&key, &values)).transpose()?,
                "trace_file" if values.is_some() => {
                    return Err(Status::unsupported("trace file location can not be updated through network protocol"));
                }
                // As in Triton, what is no setting has no effect.
                _ => {}
            }
        }
        Ok(next)
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == OwnSettings::default()
    }

    /// Whether it follows wider settings nowhere.
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
    match bounded(key, value, i64::from(i32::MIN), i64::from(i32::MAX))? {
        ..-1 => Err(Status::invalid(format!("Unable to parse '{key}'. Expecting value >= -1, got: {value}"))),
        count => Ok(i32::try_from(count).unwrap_or(-1)),
    }
}

fn levels(values: Vec<String>) -> Result<TraceLevels, Status> {
    if values.len() > 1 && values.iter().any(|level| level == "OFF") {
        return Err(Status::invalid("Expect only one trace level 'OFF' is specified"));
    }
    let has = |name: &str| values.iter().any(|level| level == name);
    Ok(TraceLevels { timestamps: has("TIMESTAMPS"), tensors: has("TENSORS") })
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
            let told = TraceConfig::default().with(&own).told(own.count.unwrap_or(-1));
            told.into_iter().find(|(told, _)| told == key).map(|(_, values)| values.join(" ")).unwrap_or_default()
        });
        assert_eq!(now.map_err(|error| error.message), expected.map(str::to_owned).map_err(str::to_owned));
    }

    #[test]
    fn a_change_is_taken_over_or_refused_with_its_reason() {
        check("trace_level", &["TIMESTAMPS", "BOGUS"], Ok("TIMESTAMPS"));
        check("trace_level", &["BOGUS"], Ok("OFF"));
        check("trace_level", &["OFF", "TENSORS"], Err("Expect only one trace level 'OFF' is specified"));
        check("trace_level", &["TENSORS", "TIMESTAMPS", "TENSORS"], Ok("TIMESTAMPS TENSORS"));
        check("trace_rate", &["5"], Ok("5"));
        check("trace_rate", &["x"], Err("Unable to parse 'trace_rate', got: x"));
        let text = "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: -1";
        check("trace_rate", &["-1"], Err(text));
        check("trace_count", &["7"], Ok("7"));
        check("trace_count", &["-2"], Err("Unable to parse 'trace_count'. Expecting value >= -1, got: -2"));
        check("trace_rate", &["1", "2"], Err("expect only 1 value for 'trace_rate'"));
        check("trace_file", &["/x"], Err("trace file location can not be updated through network protocol"));
        check("anything", &["x"], Ok(""));
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
        assert_eq!(text(&TraceConfig { file: "/x".into(), ..on }), Ok(()));
        assert_eq!(text(&TraceConfig { rate: 0, ..TraceConfig::default() }), Ok(()));
    }
}
