//! Which packets are sent on the side channel?

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter, Result};

use nerite_backend::MetricChange;
use nerite_request::report::MetricKind;
use serde_json::Value;

use super::numbers;
use super::tensors::{List, Text};

/// A packet of the process, as the server reads it.
#[derive(Clone, Debug)]
pub struct SideSaid(pub(super) Value);

impl SideSaid {
    /// Parses a packet.
    pub fn read(text: &[u8]) -> serde_json::Result<SideSaid> {
        serde_json::from_slice(text).map(SideSaid)
    }

    /// A line for the log.
    pub fn log(&self) -> Option<Log<'_>> {
        let [level, text] = self.0.get("log")?.as_array()?.as_slice() else { return None };
        let place = || {
            let [file, line] = self.0.get("at")?.as_array()?.as_slice() else { return None };
            Some((file.as_str()?, u32::try_from(line.as_u64()?).ok()?))
        };
        let (level, text) = (level.as_str().unwrap_or_default(), text.as_str().unwrap_or_default());
        Some(Log { level, text, at: place().unwrap_or_default() })
    }

    /// The number of the first request of the batch in which that line was written.
    pub fn log_of(&self) -> Option<u64> {
        self.0.get("of")?.as_u64()
    }

    /// The question whether the request with this number was cancelled.
    pub fn cancelled(&self) -> Option<u64> {
        self.0.get("cancelled")?.as_u64()
    }

    /// The number of a request whose client has gone. The server sends it.
    pub fn gone(&self) -> Option<u64> {
        self.0.get("gone")?.as_u64()
    }

    /// A call about the model's metrics.
    pub fn metric(&self) -> Option<MetricQuestion<'_>> {
        if let Some([name, description, kind]) = self.list("metric_family") {
            let kind = match kind.as_str()? {
                "COUNTER" => MetricKind::Counter,
                "GAUGE" => MetricKind::Gauge,
                "HISTOGRAM" => MetricKind::Histogram,
                _ => return None,
            };
            return Some(MetricQuestion::Family { name: name.as_str()?, description: description.as_str()?, kind });
        }
        if let Some([family, labels, buckets]) = self.list("metric") {
            let bounds = |all: &Vec<Value>| all.iter().map(number_of).collect::<Option<Vec<f64>>>();
            let buckets = if buckets.is_null() { None } else { Some(buckets.as_array().and_then(bounds)?) };
            return Some(MetricQuestion::Metric { family: family.as_u64()?, labels: labels_of(labels), buckets });
        }
        let [metric, what, by] = self.list("measure")?;
        let change = match what.as_str()? {
            "value" => MetricChange::Value,
            "increment" => MetricChange::Increment(number_of(by)?),
            "set" => MetricChange::Set(number_of(by)?),
            "observe" => MetricChange::Observe(number_of(by)?),
            _ => return None,
        };
        Some(MetricQuestion::Change { metric: metric.as_u64()?, change })
    }

    /// The answer to a call about metrics. The server sends it.
    pub fn measured(&self) -> Option<Measured> {
        let text = |key: &str| Some(self.0.get(key)?.as_str()?.to_owned());
        let number = || Some(Measured::Number(self.0.get("number")?.as_u64()?));
        let value = || Some(Measured::Value(text("value")?.parse().ok()?));
        number().or_else(value).or_else(|| text("error").map(Measured::Error))
    }

    /// Families of metrics that the model has dropped.
    pub fn unmeasured(&self) -> Option<impl Iterator<Item = u64>> {
        Some(numbers(Some(self.0.get("unmeasured")?)))
    }

    fn list<const N: usize>(&self, key: &str) -> Option<&[Value; N]> {
        self.0.get(key)?.as_array()?.as_slice().try_into().ok()
    }

    /// Memory that the model's arrays do not use any more. The packet also asks which of that memory the server had kept.
    pub fn let_go(&self) -> Option<impl Iterator<Item = u64>> {
        Some(numbers(Some(self.0.get("let_go")?)))
    }
}

/// A line for the server's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log<'a> {
    /// `ERROR`, `WARNING`, `INFO` or `VERBOSE`.
    pub level: &'a str,
    /// The line.
    pub text: &'a str,
    /// The file and the line of the call. The file is empty if the line is not from a model's code.
    pub at: (&'a str, u32),
}

impl Display for Log<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Log { level, text, at: (file, line) } = self;
        write!(f, r#"{{"log":["{level}",{}],"at":[{},{line}]}}"#, Text(text), Text(file))
    }
}

/// The question whether the request with this number was cancelled.
#[derive(Clone, Copy, Debug)]
pub struct IsCancelled(pub u64);

impl Display for IsCancelled {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"cancelled":{}}}"#, self.0)
    }
}

/// The client of the request with this number has gone. It is sent only to processes that read the side channel.
#[derive(Clone, Copy, Debug)]
pub struct Gone(pub u64);

impl Display for Gone {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"gone":{}}}"#, self.0)
    }
}

/// The answer to [`SideSaid::cancelled`].
#[derive(Clone, Copy, Debug)]
pub struct Cancelled(pub bool);

impl Display for Cancelled {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"cancelled":{}}}"#, self.0)
    }
}

/// The question of [`SideSaid::let_go`], and its answer.
#[derive(Clone, Copy, Debug)]
pub struct LetGo<'a>(pub &'a [u64]);

impl Display for LetGo<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"let_go":{}}}"#, List(self.0.iter()))
    }
}

/// A call about the model's metrics. The answer is [`Measured`].
#[derive(Clone, Debug, PartialEq)]
pub enum MetricQuestion<'a> {
    /// Makes a family.
    Family {
        /// Its name.
        name: &'a str,
        /// Its description.
        description: &'a str,
        /// The kind of its metrics.
        kind: MetricKind,
    },
    /// Makes a metric.
    Metric {
        /// The family's number.
        family: u64,
        /// The labels, or why they are invalid.
        labels: std::result::Result<BTreeMap<String, String>, String>,
        /// A histogram's bounds.
        buckets: Option<Vec<f64>>,
    },
    /// Changes a metric, or reads its value.
    Change {
        /// Its number.
        metric: u64,
        /// The change.
        change: MetricChange,
    },
}

impl Display for MetricQuestion<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            MetricQuestion::Family { name, description, kind } => {
                let kind = match kind {
                    MetricKind::Counter => "COUNTER",
                    MetricKind::Gauge => "GAUGE",
                    MetricKind::Histogram => "HISTOGRAM",
                };
                write!(f, r#"{{"metric_family":[{},{},"{kind}"]}}"#, Text(name), Text(description))
            }
            MetricQuestion::Metric { family, labels, buckets } => {
                let labels = serde_json::json!(labels.as_ref().unwrap_or(&BTreeMap::new()));
                let buckets = buckets.as_ref().map(|all| all.iter().map(|bound| format!("{bound:?}")).collect());
                let buckets = buckets.map_or(Value::Null, |all: Vec<String>| all.into());
                write!(f, r#"{{"metric":[{family},{labels},{buckets}]}}"#)
            }
            MetricQuestion::Change { metric, change } => {
                let (what, by) = match change {
                    MetricChange::Value => return write!(f, r#"{{"measure":[{metric},"value",null]}}"#),
                    MetricChange::Increment(by) => ("increment", by),
                    MetricChange::Set(to) => ("set", to),
                    MetricChange::Observe(seen) => ("observe", seen),
                };
                write!(f, r#"{{"measure":[{metric},"{what}","{by:?}"]}}"#)
            }
        }
    }
}

/// The process does not use this family of metrics any more.
#[derive(Clone, Copy, Debug)]
pub struct Unmeasured(pub u64);

impl Display for Unmeasured {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"unmeasured":[{}]}}"#, self.0)
    }
}

/// The answer to a call about metrics.
#[derive(Clone, Debug, PartialEq)]
pub enum Measured {
    /// The number of the new family or metric.
    Number(u64),
    /// The new value of the metric.
    Value(f64),
    /// Why the call failed.
    Error(String),
}

impl Display for Measured {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Measured::Number(number) => write!(f, r#"{{"number":{number}}}"#),
            // The value is sent as text, because JSON has no infinities and no NaN.
            Measured::Value(value) => write!(f, r#"{{"value":"{value:?}"}}"#),
            Measured::Error(text) => write!(f, r#"{{"error":{}}}"#, Text(text)),
        }
    }
}

/// Parses a number that is sent as text.
fn number_of(value: &Value) -> Option<f64> {
    value.as_str()?.parse().ok()
}

fn labels_of(value: &Value) -> std::result::Result<BTreeMap<String, String>, String> {
    let pair = |(name, value): (&String, &Value)| {
        let text = value.as_str().ok_or("attempt to access JSON non-string as string")?;
        Ok((name.clone(), text.to_owned()))
    };
    value.as_object().into_iter().flatten().map(pair).collect()
}
