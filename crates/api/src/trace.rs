//! Which trace settings hold for which model?
//!
//! Settings are kept and answered as Triton does; nothing is traced yet.

use std::collections::BTreeMap;

use nerite_request::Status;
use nerite_request::setting::{TraceChange, TraceSettings};

/// The settings in Triton's order, with their defaults.
const DEFAULTS: [(&str, &str); 6] = [
    ("trace_level", "OFF"),
    ("trace_rate", "1000"),
    ("trace_count", "-1"),
    ("log_frequency", "0"),
    ("trace_file", ""),
    ("trace_mode", "triton"),
];

/// What was set for the server and for single models.
#[derive(Debug, Default)]
pub struct Trace {
    server: BTreeMap<String, Vec<String>>,
    models: BTreeMap<String, BTreeMap<String, Vec<String>>>,
}

impl Trace {
    /// Settings of the server (empty name) or of a model: its own, else the server's, else the default.
    pub fn settings(&self, model: &str) -> TraceSettings {
        let own = self.models.get(model).filter(|_| !model.is_empty());
        let value = |key: &str, default: &str| {
            let set = own.and_then(|own| own.get(key)).or_else(|| self.server.get(key));
            set.cloned().unwrap_or_else(|| vec![default.to_owned()])
        };
        DEFAULTS.iter().map(|(key, default)| ((*key).to_owned(), value(key, default))).collect()
    }

    /// Takes a change over, whole or not at all.
    pub fn change(&mut self, model: &str, change: TraceChange) -> Result<(), Status> {
        let mut next = Vec::with_capacity(change.len());
        for (key, values) in change {
            // As in Triton, what is no setting has no effect.
            if !DEFAULTS.iter().any(|(known, _)| *known == key) {
                continue;
            }
            let values = values.map(|values| check(&key, values)).transpose()?;
            next.push((key, values));
        }
        let settings =
            if model.is_empty() { &mut self.server } else { self.models.entry(model.to_owned()).or_default() };
        for (key, values) in next {
            match values {
                Some(values) => drop(settings.insert(key, values)),
                None => drop(settings.remove(&key)),
            }
        }
        Ok(())
    }
}

fn check(key: &str, values: Vec<String>) -> Result<Vec<String>, Status> {
    if key == "trace_level" {
        return levels(values);
    }
    if key == "trace_file" {
        return Err(Status::unsupported("trace file location can not be updated through network protocol"));
    }
    let [value] = &values[..] else {
        return Err(Status::invalid(format!("expect only 1 value for '{key}'")));
    };
    match key {
        "trace_rate" | "log_frequency" => bounded(key, value, 0, i64::from(u32::MAX))?,
        "trace_count" => {
            bounded(key, value, i64::from(i32::MIN), i64::from(i32::MAX))?;
            if value.parse::<i64>().is_ok_and(|count| count < -1) {
                return Err(Status::invalid(format!(
                    "Unable to parse 'trace_count'. Expecting value >= -1, got: {value}"
                )));
            }
        }
        _ => {}
    }
    Ok(values)
}

fn levels(values: Vec<String>) -> Result<Vec<String>, Status> {
    if values.iter().any(|level| level == "OFF") {
        return match values.len() {
            1 => Ok(values),
            _ => Err(Status::invalid("Expect only one trace level 'OFF' is specified")),
        };
    }
    let mut known: Vec<String> = Vec::new();
    for level in values {
        if matches!(level.as_str(), "TIMESTAMPS" | "TENSORS") && !known.contains(&level) {
            known.push(level);
        }
    }
    Ok(if known.is_empty() { vec!["OFF".to_owned()] } else { known })
}

fn bounded(key: &str, value: &str, min: i64, max: i64) -> Result<(), Status> {
    let digits = value.strip_prefix('-').unwrap_or(value);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Status::invalid(format!("Unable to parse '{key}', got: {value}")));
    }
    match value.parse::<i64>() {
        Ok(number) if (min..=max).contains(&number) => Ok(()),
        _ => Err(Status::invalid(format!(
            "Unable to parse '{key}', value is out of range [ {min}, {max} ], got: {value}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_change(key: &str, values: &[&str], expected: Result<&str, &str>) {
        let mut trace = Trace::default();
        let values = values.iter().map(|v| (*v).to_owned()).collect();
        let outcome = trace.change("", vec![(key.to_owned(), Some(values))]).map_err(|e| e.message);
        let now = trace.settings("m").into_iter().find(|(k, _)| k == key).map(|(_, v)| v.join(" "));
        assert_eq!(outcome.map(|()| now.unwrap_or_default()), expected.map(str::to_owned).map_err(str::to_owned));
    }

    #[test]
    fn a_change_is_taken_over_or_refused_with_its_reason() {
        check_change("trace_level", &["TIMESTAMPS", "BOGUS"], Ok("TIMESTAMPS"));
        check_change("trace_level", &["OFF", "TENSORS"], Err("Expect only one trace level 'OFF' is specified"));
        check_change("trace_level", &["TENSORS", "TIMESTAMPS", "TENSORS"], Ok("TENSORS TIMESTAMPS"));
        check_change("trace_rate", &["5"], Ok("5"));
        check_change("trace_rate", &["x"], Err("Unable to parse 'trace_rate', got: x"));
        check_change(
            "trace_rate",
            &["-1"],
            Err("Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: -1"),
        );
        check_change("trace_count", &["-2"], Err("Unable to parse 'trace_count'. Expecting value >= -1, got: -2"));
        check_change("trace_rate", &["1", "2"], Err("expect only 1 value for 'trace_rate'"));
        check_change("trace_file", &["/x"], Err("trace file location can not be updated through network protocol"));
    }

    #[test]
    fn what_is_no_setting_is_not_kept() {
        let mut trace = Trace::default();
        trace.change("", vec![("anything".into(), Some(vec!["x".into()]))]).expect("ignored");
        assert!(trace.server.is_empty());
    }

    #[test]
    fn a_model_follows_the_server_until_it_has_its_own_and_again_when_cleared() {
        let mut trace = Trace::default();
        let rate = |trace: &Trace, model| trace.settings(model)[1].1.clone();
        trace.change("", vec![("trace_rate".into(), Some(vec!["7".into()]))]).expect("a number");
        assert_eq!(rate(&trace, "m"), ["7"]);
        trace.change("m", vec![("trace_rate".into(), Some(vec!["9".into()]))]).expect("a number");
        assert_eq!((rate(&trace, "m"), rate(&trace, "")), (vec!["9".to_owned()], vec!["7".to_owned()]));
        trace.change("m", vec![("trace_rate".into(), None)]).expect("clearing");
        assert_eq!(rate(&trace, "m"), ["7"]);
    }
}
