//! What is said on the side channel?

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter, Result};

use nerite_backend::MetricChange;
use nerite_request::report::MetricKind;
use serde_json::Value;

use super::numbers;
use super::tensors::{List, Text};

/// A packet of the process's as the server reads it.
#[derive(Clone, Debug)]
pub struct SideSaid(Value);

impl SideSaid {
    /// From the packet's text.
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

    /// The number of a request: whether its client gave it up is asked.
    pub fn cancelled(&self) -> Option<u64> {
        self.0.get("cancelled")?.as_u64()
    }

    /// The number of a request whose client has gone: said by the server.
    pub fn gone(&self) -> Option<u64> {
        self.0.get("gone")?.as_u64()
    }

    /// What is asked of the model's metrics.
    pub fn metric(&self) -> Option<MetricAsked<'_>> {
        if let Some([name, description, kind]) = self.list("metric_family") {
            let kind = match kind.as_str()? {
                "COUNTER" => MetricKind::Counter,
                "GAUGE" => MetricKind::Gauge,
                "HISTOGRAM" => MetricKind::Histogram,
                _ => return None,
            };
            return Some(MetricAsked::Family { name: name.as_str()?, description: description.as_str()?, kind });
        }
        if let Some([family, labels, buckets]) = self.list("metric") {
            let bounds = |all: &Vec<Value>| all.iter().map(number_of).collect::<Option<Vec<f64>>>();
            let buckets = if buckets.is_null() { None } else { Some(buckets.as_array().and_then(bounds)?) };
            return Some(MetricAsked::Metric { family: family.as_u64()?, labels: labels_of(labels), buckets });
        }
        let [metric, what, by] = self.list("measure")?;
        let change = match what.as_str()? {
            "value" => MetricChange::Value,
            "increment" => MetricChange::Increment(number_of(by)?),
            "set" => MetricChange::Set(number_of(by)?),
            "observe" => MetricChange::Observe(number_of(by)?),
            _ => return None,
        };
        Some(MetricAsked::Change { metric: metric.as_u64()?, change })
    }

    /// Families of metrics that the model has no more.
    pub fn unmeasured(&self) -> Option<impl Iterator<Item = u64>> {
        Some(numbers(Some(self.0.get("unmeasured")?)))
    }

    fn list<const N: usize>(&self, key: &str) -> Option<&[Value; N]> {
        self.0.get(key)?.as_array()?.as_slice().try_into().ok()
    }

    /// Memory that the model keeps arrays on no more: which of it was kept is asked.
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
    /// The file and the line in it that logged; an empty file for what no model logged.
    pub at: (&'a str, u32),
}

impl Display for Log<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Log { level, text, at: (file, line) } = self;
        write!(f, r#"{{"log":["{level}",{}],"at":[{},{line}]}}"#, Text(text), Text(file))
    }
}

/// The question whether the client gave up the request of this number.
#[derive(Clone, Copy, Debug)]
pub struct IsCancelled(pub u64);

impl Display for IsCancelled {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"cancelled":{}}}"#, self.0)
    }
}

/// The client of the request with this number has gone. Only a process that listens is told.
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

/// What is asked of the model's metrics; answered with [`Measured`].
#[derive(Clone, Debug, PartialEq)]
pub enum MetricAsked<'a> {
    /// To make a family.
    Family {
        /// Its name.
        name: &'a str,
        /// What it is about.
        description: &'a str,
        /// What its metrics count.
        kind: MetricKind,
    },
    /// To make a metric.
    Metric {
        /// The family's number.
        family: u64,
        /// The labels, or why they are none.
        labels: std::result::Result<BTreeMap<String, String>, String>,
        /// A histogram's bounds.
        buckets: Option<Vec<f64>>,
    },
    /// To change a metric, or to tell its value.
    Change {
        /// Its number.
        metric: u64,
        /// What is done to it.
        change: MetricChange,
    },
}

/// The answer to that.
#[derive(Clone, Debug, PartialEq)]
pub enum Measured {
    /// The number of what was made.
    Number(u64),
    /// The value of a metric now.
    Value(f64),
    /// Why nothing was done.
    Error(String),
}

impl Display for Measured {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Measured::Number(number) => write!(f, r#"{{"number":{number}}}"#),
            // As a text, for JSON knows neither infinities nor what is not a number.
            Measured::Value(value) => write!(f, r#"{{"value":"{value:?}"}}"#),
            Measured::Error(text) => write!(f, r#"{{"error":{}}}"#, Text(text)),
        }
    }
}

/// A number that travels as a text.
fn number_of(told: &Value) -> Option<f64> {
    told.as_str()?.parse().ok()
}

fn labels_of(told: &Value) -> std::result::Result<BTreeMap<String, String>, String> {
    let pair = |(name, value): (&String, &Value)| {
        let text = value.as_str().ok_or("attempt to access JSON non-string as string")?;
        Ok((name.clone(), text.to_owned()))
    };
    told.as_object().into_iter().flatten().map(pair).collect()
}
